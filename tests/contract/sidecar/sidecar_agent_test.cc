// The sidecar's agent on its loop, between a coordinator and engines that the test plays.
#include "inference_side/sidecar/sidecar_agent.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "inference_side/sidecar/sidecar_options.h"
#include "shared/base/unique_fd.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/zmq/ports.h"
#include "shared/transport/frame.h"
#include "shared/transport/memfd/memfd_source.h"
#include "tests/contract/sidecar/sidecar_fixture.h"
#include "tests/support/versions.h"

namespace wsync::agent::test {
namespace {

// A TCP source that never has what it is asked for, and says so again and again.
class WaitingSource {
 public:
  WaitingSource() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] bool was_asked() const { return was_asked_; }
  [[nodiscard]] bool has_ended() const { return connections_.empty(); }
  void serve() {
    for (;;) {
      UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!accepted.valid()) break;
      connections_.push_back({.socket = std::move(accepted), .asked = {}});
    }
    std::erase_if(connections_, [this](Connection& connection) {
      std::array<std::byte, transport::kFrameBytes> bytes;
      const int fd = connection.socket.get();
      const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), MSG_PEEK);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
      if (n == static_cast<ssize_t>(bytes.size())) {
        EXPECT_EQ(::recv(fd, bytes.data(), bytes.size(), 0), n);
        connection.asked = transport::decode_frame(bytes).value();
        was_asked_ = true;
      }
      if (!connection.asked) return false;
      const auto waiting = transport::encode_frame({.type = transport::FrameType::kWaiting,
                                                    .key = connection.asked->key,
                                                    .bucket = connection.asked->bucket});
      (void)::send(fd, waiting.data(), waiting.size(), MSG_NOSIGNAL);
      return false;
    });
  }

 private:
  struct Connection {
    UniqueFd socket;
    std::optional<transport::Frame> asked;
  };
  UniqueFd listener_;
  std::string address_;
  std::vector<Connection> connections_;
  bool was_asked_ = false;
};

class SidecarAgentTest : public testing::Test {
 protected:
  SidecarAgentTest() {
    control::RouterCallbacks callbacks;
    callbacks.on_message = [this](const std::string& peer, const control::Envelope& envelope,
                                  control::Message message) {
      if (std::holds_alternative<control::Heartbeat>(message)) return;
      peer_ = peer;
      // A Hello that nobody answers is repeated.
      if (std::holds_alternative<control::Hello>(message) && welcome_ && envelope.fence == fence_) {
        const control::Envelope answer{.fence = fence_, .request = envelope.request};
        EXPECT_TRUE(router_->send(peer, answer, *welcome_).has_value());
      }
      heard_.emplace_back(envelope, std::move(message));
    };
    const std::string address = "ipc://" + bench_.directory() + "/control";
    router_ = control::listen_zmq(bench_.loop(), {.address = address, .times = kPatient},
                                  std::move(callbacks))
                  .value();
    source_ = transport::memfd::MemfdSource::listen(
                  {.path = bench_.directory() + "/host"},
                  [this](std::function<void()> task) { bench_.loop().post(std::move(task)); })
                  .value();
    config::SidecarConfig config;
    config.name = "s";
    config.coordinator = address;
    config.run_dir = bench_.directory() + "/run";
    config.state_dir = bench_.directory() + "/state";
    config.heartbeat.deadline = kPatient.silence_deadline;
    agent_ = SidecarAgent::create(bench_.loop(), config).value();
  }

  void say(control::Message message) {
    if (const auto* welcome = std::get_if<control::Welcome>(&message)) welcome_ = *welcome;
    control::Envelope envelope;
    envelope.fence = fence_;
    envelope.round = round_;
    const auto sent = router_->send(peer_, envelope, message);
    ASSERT_TRUE(sent.has_value()) << sent.error().message();
  }
  // The sidecar's next message of this kind; others before it are passed over.
  template <class T>
  [[nodiscard]] std::optional<T> next() {
    std::optional<T> found;
    EXPECT_TRUE(bench_.until([&] {
      while (!heard_.empty() && !found) {
        if (T* message = std::get_if<T>(&heard_.front().second)) found = std::move(*message);
        heard_.pop_front();
      }
      return found.has_value();
    })) << "the sidecar sent no "
        << control::message_name(T::kType);
    return found;
  }
  void welcome() {
    ASSERT_TRUE(next<control::Hello>());
    say(control::Welcome{.transports = {{"memfd", source_->address()}}});
    ASSERT_TRUE(next<control::Hello>());
  }
  // An engine that is attached and answers nothing.
  [[nodiscard]] std::unique_ptr<RawEngine> engine(const std::string& replica) {
    auto made = std::make_unique<RawEngine>(bench_, agent_->engine_socket(), replica);
    made->hello(model_);
    EXPECT_TRUE(made->next<control::EngineWelcome>());
    return made;
  }
  void offer(SharedArena& arena, Version version) {
    transport::Offer offer;
    offer.key = {.fence = {.epoch = fence_.epoch, .run_id = fence_.run_id},
                 .version = version,
                 .layout = model_.manifest->layout_digest()};
    for (std::size_t i = 0; i < model_.plan->bucket_count(); ++i)
      offer.buckets.push_back(
          {.offset = model_.plan->bucket_offset(i), .bytes = model_.plan->bucket_size(i)});
    offer.data = arena.data();
    offer.share = [&arena] { return arena.share(); };
    source_->offer(std::move(offer));
  }
  // A round up to the moment when the sidecar begins to stage.
  void begin_round(Version version) {
    announce(version);
    say(control::Stage{.version = version, .transport = "memfd", .source = source_->address()});
  }
  void announce(Version version) {
    ++round_;
    say(control::Announce{.version = version,
                          .layout_digest = model_.manifest->layout_digest(),
                          .layout = model_.layout(),
                          .content_digest = model_.content(version),
                          .bucket_bytes = model_.plan->bucket_bytes(),
                          .arena_bytes = model_.plan->arena_bytes()});
    ASSERT_TRUE(next<control::Accept>());
  }

  static constexpr control::PortTimes kPatient{
      .heartbeat_interval = std::chrono::milliseconds(50),
      .silence_deadline = std::chrono::milliseconds(60'000)};
  Bench bench_;
  Model model_;
  control::Fence fence_{.epoch = 7, .run_id = {1, 2}};
  std::uint64_t round_ = 0;
  std::optional<control::Welcome> welcome_;  // the last one
  std::string peer_;
  std::deque<std::pair<control::Envelope, control::Message>> heard_;
  std::unique_ptr<control::RouterPort> router_;
  std::unique_ptr<transport::memfd::MemfdSource> source_;
  std::unique_ptr<SidecarAgent> agent_;
};

TEST(SidecarOptions, AreWhatTheConfigurationSays) {
  config::SidecarConfig config;
  config.name = "s";
  config.deadlines = {.pause = std::chrono::milliseconds(1),
                      .load = std::chrono::milliseconds(2),
                      .commit = std::chrono::milliseconds(3)};
  config.max_staleness = std::chrono::milliseconds(0);
  const staging::SidecarOptions options = sidecar_options(config);
  EXPECT_EQ(options.pause, config.deadlines.pause);
  EXPECT_EQ(options.load, config.deadlines.load);
  EXPECT_EQ(options.replica.commit, config.deadlines.commit);
  EXPECT_EQ(options.replica.max_staleness.count(), 0) << "0 is a value: never stale";
}

TEST_F(SidecarAgentTest, AVersionThatIsGivenUpWhileEnginesGetReadyIsLetGoEverywhere) {
  SharedArena arena = model_.arena(kV1);
  welcome();
  const auto rank = engine("a");
  offer(arena, kV1);
  begin_round(kV1);
  ASSERT_TRUE(rank->next<control::Prepare>()) << "it is verified now";
  EXPECT_EQ(arena.try_write_lease({}).error().code(), ErrorCode::kBusy);
  say(control::Abort{.version = kV1, .reason = "another sidecar refused"});
  ASSERT_TRUE(rank->next<control::Release>());
  EXPECT_TRUE(bench_.until([&] { return model_.write(arena, kV1).has_value(); }))
      << "the sidecar keeps its lease";
  begin_round(kV1);
  ASSERT_TRUE(rank->next<control::Prepare>());
  rank->say(control::Prepared{.version = kV1});
  const auto staged = next<control::Staged>();
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->failure, "");
  EXPECT_EQ(staged->content_digest, model_.content(kV1));
}

TEST_F(SidecarAgentTest, EnginesSeeTheHighestFenceAndOneWithAHigherFenceIsRefused) {
  SharedArena arena = model_.arena(kV1);
  welcome();
  RawEngine rank(bench_, agent_->engine_socket(), "a");
  rank.hello(model_, {.epoch = 3});
  const auto greeted = rank.next<control::EngineWelcome>();
  ASSERT_TRUE(greeted);
  EXPECT_EQ(greeted->first.fence, fence_);
  fence_ = {.epoch = 9};
  say(control::Welcome{.transports = {{"memfd", source_->address()}}});
  ASSERT_TRUE(next<control::Hello>());
  offer(arena, kV1);
  begin_round(kV1);
  const auto prepare = rank.next<control::Prepare>();
  ASSERT_TRUE(prepare);
  EXPECT_EQ(prepare->first.fence, fence_);
  RawEngine other(bench_, agent_->engine_socket(), "b");
  other.hello(model_, {.epoch = 10});
  const auto refused = other.next<control::Refuse>();
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->second.reason.find("fence epoch 10"), std::string::npos);
  EXPECT_TRUE(bench_.until([&] { return other.closed(); }));
}

TEST_F(SidecarAgentTest, AnotherSourceIsNotNeededOnceEverythingIsHere) {
  SharedArena arena = model_.arena(kV1);
  welcome();
  const auto rank = engine("a");
  offer(arena, kV1);
  begin_round(kV1);
  ASSERT_TRUE(rank->next<control::Prepare>());
  say(control::Stage{
      .version = kV1, .transport = "memfd", .source = bench_.directory() + "/another"});
  const control::Fence fence = std::exchange(fence_, {.epoch = 1});
  say(control::Stage{.version = kV1});  // of a coordinator that was replaced: answered in its turn
  ASSERT_TRUE(next<control::ErrorReply>());
  fence_ = fence;
  rank->say(control::Prepared{.version = kV1});
  const auto staged = next<control::Staged>();
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->failure, "");
}

TEST_F(SidecarAgentTest, AVersionThatComesByMemfdInsteadIsNotWaitedForByTcp) {
  SharedArena arena = model_.arena(kV1);
  welcome();
  offer(arena, kV1);
  WaitingSource slow;
  announce(kV1);
  say(control::Stage{.version = kV1, .transport = "tcp", .source = slow.address()});
  ASSERT_TRUE(bench_.until([&] {
    slow.serve();
    return slow.was_asked();
  }));
  say(control::Stage{.version = kV1, .transport = "memfd", .source = source_->address()});
  const auto staged = next<control::Staged>();
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->failure, "");
  EXPECT_TRUE(bench_.until([&] {
    slow.serve();
    return slow.has_ended();
  })) << "a bucket that comes now would be taken for one of what is arriving";
}

TEST_F(SidecarAgentTest, AKeyOfAnotherLengthIsRefused) {
  welcome();
  announce(kV1);
  say(control::Stage{
      .version = kV1, .transport = "tcp", .source = "tcp://127.0.0.1:1", .key = Bytes(5)});
  const auto staged = next<control::Staged>();
  ASSERT_TRUE(staged);
  EXPECT_THAT(staged->failure, testing::HasSubstr("a key of 5 bytes"));
}

// Its sums are right, so it is staged by them; an engine that serves from it needs its bytes.
TEST_F(SidecarAgentTest, AVersionWithOtherBytesThanItsSumsFailsBeforeItIsDecided) {
  SharedArena arena = model_.protected_arena(kV1);
  constexpr std::uintptr_t kPage = 4096;
  auto* byte = const_cast<std::byte*>(arena.data().data()) + 5;
  auto* page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(byte) / kPage * kPage);
  ASSERT_EQ(::mprotect(page, kPage, PROT_READ | PROT_WRITE), 0);
  *byte ^= std::byte{1};
  welcome();
  RawEngine adopting(bench_, agent_->engine_socket(), "a");
  adopting.hello(model_, {}, control::TakeMode::kAdopt);
  ASSERT_TRUE(adopting.next<control::EngineWelcome>());
  offer(arena, kV1);
  begin_round(kV1);
  const auto staged = next<control::Staged>();
  ASSERT_TRUE(staged);
  EXPECT_THAT(staged->failure, testing::HasSubstr("tensor 'a': bytes 0 to 1048576 are not those"));
}

TEST_F(SidecarAgentTest, ACopyIsKeptWhenAnEngineCannotLoadItAndLetGoWhenItHasChanged) {
  auto arena =
      SharedArena::create({.name = "trainer", .data_bytes = model_.plan->arena_bytes()}).value();
  const std::span<std::byte> memory = model_.write(arena, kV1).value();
  welcome();
  const auto rank = engine("a");
  offer(arena, kV1);
  begin_round(kV1);
  ASSERT_TRUE(rank->next<control::Prepare>());
  rank->say(control::Prepared{.version = kV1});
  ASSERT_TRUE(next<control::Staged>());
  say(control::Decide{.number = 1, .target = kV1, .content_digest = model_.content(kV1)});
  const auto load_comes = [&]() -> std::uint64_t {
    const auto load = rank->next<control::Load>();
    return load ? load->first.request : 0;
  };
  const auto cannot_load = [&](std::uint64_t request, const std::string& why) {
    rank->say(control::Loaded{.version = kV1, .failure = why}, request);
  };
  cannot_load(load_comes(), "no memory");
  cannot_load(load_comes(), "no memory");
  const auto switched = next<control::Switched>();
  ASSERT_TRUE(switched);
  EXPECT_EQ(switched->outcomes.at(0).outcome, control::SwitchOutcome::kTainted);
  const std::uint64_t again =
      load_comes();  // tried again once the copy was found good, which takes a while
  memory[model_.plan->arena_offset(model_.plan->pieces().back())] ^= std::byte{1};
  cannot_load(again, "checksum");
  cannot_load(load_comes(), "checksum");
  ASSERT_TRUE(rank->next<control::Release>());
  const auto hello = next<control::Hello>();
  ASSERT_TRUE(hello);
  EXPECT_TRUE(hello->staged.empty());
}

}  // namespace
}  // namespace wsync::agent::test
