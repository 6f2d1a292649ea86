// The host link: hang-ups, leases, and peers that misbehave.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "shared/transport/memfd/memfd_sink.h"
#include "shared/transport/memfd/memfd_source.h"
#include "shared/transport/memfd/packet.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/private_directory.h"

namespace {

std::atomic<std::uint64_t> accepts_failed = 0;

}  // namespace

// In the place of the C library's, for this whole test program.
extern "C" int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  const auto fd = static_cast<int>(::syscall(SYS_accept4, listener, address, length, flags));
  if (fd < 0 && errno == EMFILE) ++accepts_failed;
  return fd;
}

namespace wsync::transport::memfd {
namespace {

using ::testing::HasSubstr;
constexpr std::chrono::milliseconds kShort{700};

class MemfdPeer : public ::testing::Test {
 protected:
  void SetUp() override { source_ = listen(); }
  [[nodiscard]] std::string path() const { return directory_.path() / "host.sock"; }
  std::unique_ptr<MemfdSource> listen() {
    auto source = MemfdSource::listen({.path = path(),
                                       .offer_wait = kShort,
                                       .on_peer = [this](int pid) { peers_.push_back(pid); },
                                       .on_peer_lost = [this](int pid) { lost_.push_back(pid); }},
                                      loop_.post());
    EXPECT_TRUE(source.has_value()) << source.error().message();
    return std::move(*source);
  }
  [[nodiscard]] std::unique_ptr<MemfdSink> sink() {
    return std::move(*MemfdSink::create(
        loop_.post(), {.on_lost = [this](const Error& why) { links_lost_.push_back(why.code()); },
                       .on_arenas_retired = [this] { ++retired_; }}));
  }

  OwnerLoop loop_;
  PrivateDirectory directory_{"wsync_host"};
  TestVersion version_{1};
  std::vector<int> peers_;
  std::vector<int> lost_;
  std::vector<ErrorCode> links_lost_;
  int retired_ = 0;
  std::unique_ptr<MemfdSource> source_;
};

TEST_F(MemfdPeer, AnArenaStaysMappedUntilItsSourceFreesItOrEnds) {
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);)
      if (line.find("r--s") != std::string::npos && line.find("wsync-kept") != std::string::npos)
        ++count;
    return count;
  };
  std::optional<TestVersion> first(std::in_place, 1, limits::kMiB, "wsync-kept");
  const TestVersion second(2, limits::kMiB, "wsync-kept");
  Receiver receiver(sink(), 0);
  const auto take = [&](const TestVersion& version) {
    receiver.done = 0;
    ASSERT_TRUE(receiver.receive(receiver.wanted(version, path())).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
    ASSERT_TRUE(receiver.view.has_value()) << receiver.failure_text();
  };
  source_->offer(first->offer());
  source_->offer(second.offer());
  take(*first);
  const std::byte* place = receiver.view->data().data();
  receiver.view.reset();
  EXPECT_EQ(mapped(), 1U);
  take(*first);
  EXPECT_EQ(receiver.view->data().data(), place);
  receiver.view.reset();
  take(second);
  EXPECT_EQ(mapped(), 2U);
  source_->withdraw(first->key().version, "superseded");
  first.reset();
  ASSERT_TRUE(loop_.run_until([&] { return retired_ == 1; }));
  EXPECT_EQ(mapped(), 1U);

  source_.reset();
  ASSERT_TRUE(loop_.run_until([&] { return retired_ == 2; }));
  EXPECT_EQ(mapped(), 1U) << "the view is in use";
  receiver.view.reset();
  EXPECT_EQ(mapped(), 0U);
}

TEST_F(MemfdPeer, NothingIsCopiedAndTheViewHoldsItsLease) {
  source_->offer(version_.offer());
  Receiver receiver(sink(), 0);
  FetchRequest wanted = receiver.wanted(version_, path());
  wanted.content = digest_of(version_.data());
  ASSERT_TRUE(receiver.receive(std::move(wanted)).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
  ASSERT_TRUE(receiver.view.has_value()) << receiver.failure_text();
  EXPECT_LT(source_->counters().wire_bytes, 2 * kFrameBytes);
  source_->withdraw(version_.key().version, "superseded");
  EXPECT_EQ(version_.arena().try_write_lease({}).error().code(), ErrorCode::kBusy);
  receiver.view.reset();
  EXPECT_TRUE(version_.arena().try_write_lease({}).has_value());
}

TEST_F(MemfdPeer, ArenaWithOtherContentThanAnnouncedIsRefused) {
  source_->offer(version_.offer());
  Receiver receiver(sink(), 0);
  FetchRequest wanted = receiver.wanted(version_, path());
  wanted.content = Digest{.low = 1, .high = 1};
  ASSERT_TRUE(receiver.receive(std::move(wanted)).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
  EXPECT_THAT(receiver.failure_text(), HasSubstr("content digest is"));
}

TEST_F(MemfdPeer, HangUpTellsBothSidesAtOnce) {
  auto link = sink();
  ASSERT_TRUE(link->watch(path()).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return !peers_.empty(); }));
  EXPECT_EQ(peers_, std::vector<int>{::getpid()});
  link.reset();
  ASSERT_TRUE(loop_.run_until([&] { return !lost_.empty(); }));
  EXPECT_EQ(lost_, std::vector<int>{::getpid()});

  auto second = sink();
  ASSERT_TRUE(second->watch(path()).has_value());
  source_.reset();
  ASSERT_TRUE(loop_.run_until([&] { return !links_lost_.empty(); }));
  EXPECT_EQ(links_lost_.front(), ErrorCode::kPeerLost);
  EXPECT_FALSE(second->is_connected());
}

TEST_F(MemfdPeer, KilledProcessIsLostAndItsLeaseGoesWithIt) {
  source_->offer(version_.offer());
  const pid_t child = ::fork();
  if (child == 0) {
    // A process with nothing but a socket and a view, as a sidecar that is killed has them.
    const auto socket = connect_to(path());
    const auto request = Frame{.type = FrameType::kGet, .key = version_.key()};
    if (!socket || !send_packet(socket->get(), request, {})) ::_exit(1);
    pollfd waiting{.fd = socket->get(), .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, 10'000) != 1) ::_exit(1);
    const auto packet = receive_packet(socket->get());
    if (!packet || !*packet) ::_exit(1);
    const auto view = ArenaView::open((*packet)->fd.get());
    if (!view) ::_exit(1);
    const auto held = Frame{.type = FrameType::kGet, .key = {.version = {.epoch = 9, .step = 9}}};
    if (!send_packet(socket->get(), held, {})) ::_exit(1);  // says: I hold it now
    for (;;) ::pause();
  }
  // Its second request, for a version that is not there, is refused: then it holds the lease.
  ASSERT_TRUE(loop_.run_until([&] { return !peers_.empty(); }));
  while (source_->counters().buckets == 0 || source_->counters().refused == 0) {
    ASSERT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "the child failed";
    std::this_thread::yield();
  }
  source_->withdraw(version_.key().version, "superseded");
  EXPECT_EQ(version_.arena().try_write_lease({}).error().code(), ErrorCode::kBusy);
  ::kill(child, SIGKILL);
  ASSERT_TRUE(loop_.run_until([&] { return !lost_.empty(); }));
  EXPECT_EQ(lost_.front(), child);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(version_.arena().try_write_lease({}).has_value());
}

// Sealed memory with this byte in it.
std::shared_ptr<const SealedMemory> sealed(std::byte byte, std::size_t bytes) {
  const std::vector<std::byte> content(bytes, byte);
  const std::array<std::span<const std::byte>, 1> parts = {content};
  return std::make_shared<const SealedMemory>(SealedMemory::create("test", parts).value());
}

TEST_F(MemfdPeer, APatchComesWithTheArenaForWhoNamesABase) {
  Offer offer = version_.offer();
  offer.patch = sealed(std::byte{5}, 5000);
  source_->offer(std::move(offer));
  for (const bool names_a_base : {false, true}) {
    Receiver receiver(sink(), 0);
    FetchRequest wanted = receiver.wanted(version_, path());
    if (names_a_base) wanted.base = FetchBase{.version = {.epoch = 1, .step = 7}};
    ASSERT_TRUE(receiver.receive(std::move(wanted)).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
    ASSERT_EQ(receiver.done, 1) << receiver.failure_text();
    EXPECT_TRUE(receiver.holds(version_));
    ASSERT_EQ(receiver.patch != nullptr, names_a_base);
    if (!names_a_base) continue;
    EXPECT_EQ(receiver.patch->bytes().size(), 5000U);
    EXPECT_EQ(receiver.patch->bytes()[4999], std::byte{5});
    EXPECT_TRUE(receiver.patch->share().has_value()) << "engines cannot map it";
  }
}

TEST_F(MemfdPeer, AVersionWithoutAPatchComesAsBefore) {
  source_->offer(version_.offer());
  Receiver receiver(sink(), 0);
  FetchRequest wanted = receiver.wanted(version_, path());
  wanted.base = FetchBase{.version = {.epoch = 1, .step = 7}};
  ASSERT_TRUE(receiver.receive(std::move(wanted)).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
  ASSERT_EQ(receiver.done, 1) << receiver.failure_text();
  EXPECT_EQ(receiver.patch, nullptr);
}

// Its maker could change it, or it is larger than the version: the arena is complete without it.
TEST_F(MemfdPeer, APatchThatIsNotSealedOrTooLargeIsNotUsed) {
  const auto listener = listen_at(directory_.path() / "other.sock", Claim::kIfFree);
  ASSERT_TRUE(listener.has_value());
  const auto large = sealed(std::byte{1}, version_.data().size() + 1);
  const UniqueFd sealed_fd = large->share().value();
  const UniqueFd open_fd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(open_fd.get(), 5000), 0);
  for (const int patch : {sealed_fd.get(), open_fd.get(), listener->socket.get()}) {
    Receiver receiver(sink(), 0);
    FetchRequest wanted = receiver.wanted(version_, directory_.path() / "other.sock");
    wanted.base = FetchBase{.version = {.epoch = 1, .step = 7}};
    ASSERT_TRUE(receiver.receive(std::move(wanted)).has_value());
    const UniqueFd peer(::accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const auto arena = version_.arena().share();
    const Frame answer{.type = FrameType::kArena,
                       .key = version_.key(),
                       .bytes = version_.data().size(),
                       .base = {.epoch = 1, .step = 7}};
    ASSERT_TRUE(send_packet(peer.get(), answer, {}, {.memory = arena->get(), .patch = patch}));
    ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
    ASSERT_EQ(receiver.done, 1) << receiver.failure_text();
    EXPECT_TRUE(receiver.holds(version_));
    EXPECT_EQ(receiver.patch, nullptr);
  }
}

TEST_F(MemfdPeer, APatchWithoutABaseIsGarbage) {
  const auto listener = listen_at(directory_.path() / "other.sock", Claim::kIfFree);
  ASSERT_TRUE(listener.has_value());
  Receiver receiver(sink(), 0);
  ASSERT_TRUE(
      receiver.receive(receiver.wanted(version_, directory_.path() / "other.sock")).has_value());
  const UniqueFd peer(::accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto arena = version_.arena().share();
  const Frame answer{
      .type = FrameType::kArena, .key = version_.key(), .bytes = version_.data().size()};
  ASSERT_TRUE(send_packet(peer.get(), answer, {}, {.memory = arena->get(), .patch = arena->get()}));
  ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
  EXPECT_THAT(receiver.failure_text(), HasSubstr("descriptors do not belong"));
}

TEST_F(MemfdPeer, GarbageClosesTheConnectionAndIsCounted) {
  const auto socket = connect_to(path());
  ASSERT_TRUE(socket.has_value());
  ASSERT_EQ(::send(socket->get(), "hello", 5, MSG_NOSIGNAL), 5);
  pollfd waiting{.fd = socket->get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  char byte = 0;
  EXPECT_EQ(::recv(socket->get(), &byte, 1, 0), 0);
  EXPECT_EQ(source_->counters().garbage_peers, 1U);
}

TEST_F(MemfdPeer, RequestWithADescriptorIsGarbage) {
  const auto socket = connect_to(path());
  ASSERT_TRUE(socket.has_value());
  const Frame request{.type = FrameType::kGet, .key = version_.key()};
  ASSERT_TRUE(send_packet(socket->get(), request, {}, {.memory = socket->get()}).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return !lost_.empty(); }));
  EXPECT_EQ(source_->counters().garbage_peers, 1U);
}

TEST_F(MemfdPeer, StoppedSourceIsALossAtTheDeadline) {
  const auto listener =
      listen_at(directory_.path() / "silent.sock", Claim::kIfFree);  // nobody reads from it
  ASSERT_TRUE(listener.has_value());
  Receiver receiver(sink(), 0);
  FetchRequest wanted = receiver.wanted(version_, directory_.path() / "silent.sock");
  wanted.stall_deadline = kShort;
  ASSERT_TRUE(receiver.receive(std::move(wanted)).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver.is_over(); }));
  ASSERT_TRUE(receiver.failure.has_value());
  EXPECT_EQ(receiver.failure->error.code(), ErrorCode::kDeadline);
}

TEST_F(MemfdPeer, ASourceWithoutDescriptorsPausesAndTakesThePeerLater) {
  const UniqueFd client(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path().copy(address.sun_path, sizeof address.sun_path - 1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd first_free(::dup(0));
  const rlimit none{.rlim_cur = static_cast<rlim_t>(first_free.get()), .rlim_max = before.rlim_max};
  const std::uint64_t failed = accepts_failed;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const TimePoint begin = now();
  const int connected =
      ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  while (accepts_failed < failed + 3 && now() - begin < std::chrono::minutes(1))
    std::this_thread::yield();
  const auto taken = now() - begin;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(connected, 0);
  EXPECT_GE(taken, std::chrono::milliseconds(200)) << "it tries without a pause";
  EXPECT_TRUE(loop_.run_until([&] { return peers_.size() == 1; }));
}

// A sandbox, or a full table of descriptors: the hand-over fails, and the source is not lost by it.
TEST_F(MemfdPeer, ADescriptorThatCannotBeTakenFailsTheTransferAlone) {
  const auto listener = listen_at(directory_.path() / "other.sock", Claim::kIfFree);
  ASSERT_TRUE(listener.has_value());
  Receiver receiver(sink(), 0);
  ASSERT_TRUE(
      receiver.receive(receiver.wanted(version_, directory_.path() / "other.sock")).has_value());
  const UniqueFd peer(::accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(peer.valid());
  const auto arena = version_.arena().share();
  ASSERT_TRUE(arena.has_value());
  const Frame answer{.type = FrameType::kArena, .key = version_.key()};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd first_free(::dup(0));
  const rlimit none{.rlim_cur = static_cast<rlim_t>(first_free.get()), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool sent = send_packet(peer.get(), answer, {}, {.memory = arena->get()}).has_value();
  const bool over = loop_.run_until([&] { return receiver.is_over(); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(sent && over);
  EXPECT_THAT(receiver.failure_text(), HasSubstr("limit of open files"));
  // The sink closes its end, and says of nobody that he is lost.
  char byte = 0;
  while (::recv(peer.get(), &byte, 1, 0) > 0) {
  }
  EXPECT_TRUE(links_lost_.empty());
}

TEST_F(MemfdPeer, LeftOverSocketIsReplacedAndALiveOneIsNot) {
  const auto second = MemfdSource::listen({.path = path()}, loop_.post());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  source_.reset();
  EXPECT_FALSE(std::filesystem::exists(path()));
  const UniqueFd killed(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un where{.sun_family = AF_UNIX, .sun_path = {}};
  path().copy(where.sun_path, sizeof where.sun_path - 1);
  ASSERT_EQ(::bind(killed.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  source_ = listen();
  EXPECT_TRUE(sink()->watch(path()).has_value());
}

TEST_F(MemfdPeer, PathThatIsTooLongIsRefusedWithTheLimit) {
  const auto source = MemfdSource::listen({.path = "/tmp/" + std::string(200, 'x')}, loop_.post());
  ASSERT_FALSE(source.has_value());
  EXPECT_THAT(source.error().message(), HasSubstr("107"));
}

}  // namespace
}  // namespace wsync::transport::memfd
