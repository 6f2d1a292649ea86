// The trainer's agent on its control address, with peers that say what a test wants.
#include "trainer_side/publish/trainer_agent.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/unix_socket.h"
#include "shared/base/weight_limits.h"
#include "shared/config/trainer_config.h"
#include "shared/control/zmq/ports.h"
#include "trainer_side/coordinator/coordinator_record.h"

namespace wsync::publish {
namespace {

using control::Envelope;
using control::Message;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// What a coordinator that needs two sidecars waits for before the first one has connected.
std::string missing_sidecars(const std::string& address) {
  return "0 of at least 2 sidecars have joined " + address +
         ": start one with `wsync sidecar --set name=host0 --set coordinator=" + address +
         "` on the host of the engines";
}

class Agent : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "wsync-agent-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    loop_ = Loop::create().value();
  }
  void TearDown() override {
    ports_.clear();
    agent_.reset();
    loop_.reset();
    std::filesystem::remove_all(directory_);
  }
  Result<> start(std::vector<std::string> settings = {}) {
    settings.push_back("run_dir=" + directory_);
    settings.push_back("state_dir=" + directory_ + "/state");
    const auto config = config::load_trainer({.file = {}, .environment = {}, .set = settings});
    if (!config) return fail(config.error());
    TrainerAgentCallbacks callbacks;
    callbacks.on_stopped = [this](const Error& why) {
      stopped_ = why;
      loop_->stop();
    };
    callbacks.on_ready = [this](const Version&) { loop_->stop(); };
    auto agent = TrainerAgent::create(*loop_, *config, std::move(callbacks));
    if (!agent) return fail(agent.error());
    agent_ = std::move(*agent);
    return {};
  }
  // What a sidecar does when it is asked something under this envelope.
  using WhenAsked = std::function<void(control::DealerPort& port, const Envelope& envelope)>;
  // A sidecar that says this Hello, and says it again under the fence of each Welcome.
  void sidecar(const control::Hello& hello, WhenAsked when_asked = {}) {
    auto port = std::make_shared<control::DealerPort*>(nullptr);
    control::DealerCallbacks callbacks;
    callbacks.on_connected = [port, hello] { (void)(*port)->send({}, hello); };
    callbacks.on_message = [port, hello, when_asked](const Envelope& envelope,
                                                     const Message& message) {
      const bool asked = std::holds_alternative<control::Verify>(message) ||
                         std::holds_alternative<control::Plan>(message);
      if (asked && when_asked) when_asked(**port, envelope);
      if (!std::holds_alternative<control::Welcome>(message)) return;
      Envelope reply;
      reply.fence = envelope.fence;
      (void)(*port)->send(reply, hello);
    };
    connect(hello.name, port, std::move(callbacks));
  }
  // Sends one request; the loop stops at its answer.
  void ask(Message message, std::uint64_t request) {
    auto port = std::make_shared<control::DealerPort*>(nullptr);
    control::DealerCallbacks callbacks;
    callbacks.on_connected = [port, message, request] {
      Envelope envelope;
      envelope.request = request;
      (void)(*port)->send(envelope, message);
    };
    callbacks.on_message = [this, request](const Envelope& envelope, Message answer) {
      if (envelope.request != request) return;
      answer_ = std::move(answer);
      loop_->stop();
    };
    connect("command", port, std::move(callbacks));
    loop_->run();
  }

  std::string directory_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<TrainerAgent> agent_;
  std::vector<std::unique_ptr<control::DealerPort>> ports_;
  std::optional<Error> stopped_;
  Message answer_;

 private:
  void connect(const std::string& name, const std::shared_ptr<control::DealerPort*>& port,
               control::DealerCallbacks callbacks) {
    ports_.push_back(control::connect_zmq(*loop_, {.address = agent_->address(), .name = name},
                                          std::move(callbacks))
                         .value());
    *port = ports_.back().get();
  }
};

constexpr const char* kTakeOver = "; if that process hangs, start a trainer with --take-over ";

// The lock of another process: this process does not know that it has it.
UniqueFd foreign_lock(const std::string& path) {
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(::write(lock.get(), "1234", 4), 4);
  return lock;
}

TEST_F(Agent, WhoFindsALockOfTheFleetHeldIsToldOfTheTakeOver) {
  ASSERT_TRUE(make_private_directory(directory_ + "/state/default").has_value());
  for (const char* place : {"control", "trainer-host.sock", "state/default/coordinator"}) {
    const UniqueFd lock = foreign_lock(fmt::format("{}/{}.lock", directory_, place));
    const Result<> started = start();
    ASSERT_FALSE(started.has_value()) << place;
    EXPECT_EQ(started.error().code(), ErrorCode::kBusy);
    EXPECT_THAT(started.error().message(),
                AllOf(HasSubstr(std::string(place)), HasSubstr("is held by process 1234: stop it"),
                      HasSubstr(kTakeOver)));
  }
}

TEST_F(Agent, WhereATakeOverCannotHelpItIsNotAdvised) {
  const auto refused = [&](const std::string& setting) {
    const Result<> started = start({setting});
    if (started) return setting + " is taken";
    EXPECT_EQ(started.error().code(), ErrorCode::kBusy) << started.error().message();
    return started.error().message();
  };
  const auto other = control::listen_zmq(*loop_, {.address = "tcp://127.0.0.1:0"}, {}).value();
  EXPECT_THAT(refused("listen=" + other->address()),
              AllOf(HasSubstr("the address is in use"), Not(HasSubstr("take-over"))));
  EXPECT_THAT(refused("http.address=" + other->address()),
              AllOf(HasSubstr("http.address"), Not(HasSubstr("take-over"))));
  auto listener = ListeningSocket::bind(directory_ + "/other");
  ASSERT_TRUE(listener.has_value()) << listener.error().message();
  ASSERT_EQ(::unlink((directory_ + "/other.lock").c_str()), 0);  // so it is nobody's of wsync
  EXPECT_THAT(refused("listen=ipc://" + directory_ + "/other"),
              AllOf(HasSubstr("is a socket that is not of wsync"), Not(HasSubstr("take-over"))));
  const UniqueFd lock = foreign_lock(directory_ + "/pages.lock");
  EXPECT_THAT(refused("http.address=ipc://" + directory_ + "/pages"),
              AllOf(HasSubstr("is held by process 1234"), Not(HasSubstr("take-over"))));
}

TEST_F(Agent, AStoredEpochAboveTheLimitIsRefusedWithItsFile) {
  ASSERT_TRUE(make_private_directory(directory_ + "/state/default").has_value());
  const Bytes record =
      encode(coordinator::CoordinatorRecord{.fence = {.epoch = limits::kEpochMax + 1}});
  ASSERT_TRUE(
      write_durably(directory_ + "/state/default/coordinator.decisions", record).has_value());
  const Result<> started = start();
  ASSERT_FALSE(started.has_value());
  EXPECT_EQ(started.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(started.error().message(), HasSubstr("coordinator.decisions is damaged"));
  EXPECT_THAT(
      started.error().message(),
      HasSubstr(fmt::format("{}, at most {} allowed", limits::kEpochMax + 1, limits::kEpochMax)));
}

TEST_F(Agent, MoreWithdrawnVersionsThanAMessageHoldsAreBounded) {
  ASSERT_TRUE(start({"min_sidecars=2"}).has_value());
  // Each tells of as many withdrawn versions as a message may name; together they are too many.
  for (std::uint32_t epoch = 1; epoch <= 2; ++epoch) {
    control::Hello hello{.name = fmt::format("s{}", epoch)};
    for (std::uint64_t step = 1; step <= limits::kWithdrawnCount; ++step)
      hello.withdrawn.push_back({.epoch = epoch, .step = step});
    sidecar(hello);
  }
  loop_->run();  // until both have joined
  ASSERT_FALSE(stopped_.has_value());
  ask(control::Status{}, 7);
  const auto* status = std::get_if<control::StatusReply>(&answer_);
  ASSERT_NE(status, nullptr) << "a reply that cannot be made would be waited for";
  EXPECT_EQ(status->withdrawn.size(), limits::kWithdrawnCount);
  EXPECT_TRUE(std::ranges::all_of(status->withdrawn, [](const Version& v) { return v.epoch == 2; }))
      << "the newest stay";
}

// A small model that is read at once.
Result<std::unique_ptr<WeightSource>> small_model() {
  static const std::vector<std::byte> bytes(1000, std::byte{7});
  auto source = MemorySource::create({{.info = {.name = "w", .dtype = DType::kU8, .shape = {1000}},
                                       .bytes = std::span<const std::byte>(bytes)}});
  if (!source) return fail(source.error());
  return std::make_unique<MemorySource>(std::move(*source));
}

TEST_F(Agent, AJobThatWaitsForSidecarsIsGivenUpWithWhatItWaitsFor) {
  ASSERT_TRUE(start({"min_sidecars=2"}).has_value());
  std::map<std::uint64_t, std::string> ended;
  for (const std::uint64_t step : {1U, 2U})
    agent_->publish(
        {.open = []() -> Result<std::unique_ptr<WeightSource>> {
           return fail(ErrorCode::kInternal, "nobody reads a job that waits");
         },
         .step = step,
         .on_progress = {},
         .on_snapshotted = {},
         .on_phase = {},
         .on_done = [&ended, step](
                        const PublishResult& result) { ended[step] = result.error->message(); }});
  agent_->give_up(3);
  EXPECT_TRUE(ended.empty()) << "no job has this step";
  agent_->give_up(2);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[2], missing_sidecars(agent_->address()));
  agent_->give_up(2);
  agent_->give_up(1);
  EXPECT_EQ(ended.size(), 2U);
}

TEST_F(Agent, ASnapshotWithoutSidecarsIsTakenAtOnceAndKept) {
  ASSERT_TRUE(start({"min_sidecars=2"}).has_value());
  std::map<std::uint64_t, PublishResult> ended;
  std::string waits_for;
  for (const std::uint64_t step : {1U, 2U}) {
    agent_->publish(
        {.open = small_model,
         .step = step,
         .is_kept = true,
         .on_progress = {},
         .on_snapshotted =
             [&](const Version& version, std::chrono::nanoseconds took, const std::string& why) {
               EXPECT_TRUE(version.none()) << "there is no fence";
               EXPECT_GT(took.count(), 0);
               waits_for = why;
               loop_->stop();
             },
         .on_phase = {},
         .on_done =
             [&ended, step, this](PublishResult result) {
               ended[step] = std::move(result);
               if (step == 2) loop_->stop();  // it must not end
             }});
    loop_->run();
    EXPECT_EQ(waits_for, missing_sidecars(agent_->address()));
  }
  ASSERT_TRUE(ended.contains(1));
  EXPECT_TRUE(ended[1].superseded) << "the newer one is kept";
  EXPECT_FALSE(ended.contains(2));
}

TEST_F(Agent, ACoordinatorWhoseEpochCannotBeStoredAnswersAtOnce) {
  ASSERT_TRUE(start().has_value());
  std::filesystem::remove_all(directory_ + "/state");
  sidecar({.name = "s0"});
  loop_->run();
  ASSERT_TRUE(stopped_.has_value());
  std::optional<Result<control::RollbackReply>> back;
  agent_->roll_back({}, [&](Result<control::RollbackReply> reply) { back = std::move(reply); });
  ASSERT_TRUE(back.has_value()) << "nobody else would ever answer";
  ASSERT_FALSE(back->has_value());
  EXPECT_THAT(back->error().message(), HasSubstr("cannot store fence epoch"));
  ask(control::Rollback{}, 9);
  const auto* error = std::get_if<control::ErrorReply>(&answer_);
  ASSERT_NE(error, nullptr);
  EXPECT_THAT(error->message, HasSubstr("cannot store fence epoch"));
}

TEST_F(Agent, ALostSidecarIsNotWaitedForByWhoAskedIt) {
  ASSERT_TRUE(start({"min_sidecars=2"}).has_value());
  sidecar({.name = "s0"}, [this](control::DealerPort& port, const Envelope&) {
    loop_->post([this, &port] {
      std::erase_if(ports_, [&](const auto& held) { return held.get() == &port; });
    });
  });
  sidecar({.name = "s1"}, [](control::DealerPort& port, const Envelope& envelope) {
    (void)port.send(envelope, control::VerifyReply{.ranks = {{.replica = "r1"}}});
  });
  loop_->run();  // until both have joined
  ask(control::Verify{}, 7);
  const auto* verified = std::get_if<control::VerifyReply>(&answer_);
  ASSERT_NE(verified, nullptr);
  ASSERT_EQ(verified->ranks.size(), 2U);
  EXPECT_EQ(verified->ranks[0].replica, "");
  EXPECT_THAT(verified->ranks[0].failure,
              AllOf(HasSubstr("sidecar s0 was lost: s0-"), HasSubstr("closed the connection")));
  EXPECT_EQ(verified->ranks[1].replica, "r1");
  EXPECT_EQ(verified->ranks[1].failure, "");
}

TEST_F(Agent, ASidecarThatLeavesIsNotWaitedForByWhoAskedIt) {
  ASSERT_TRUE(start().has_value());
  sidecar({.name = "s0"}, [](control::DealerPort& port, const Envelope& envelope) {
    (void)port.send(envelope, control::Leave{});
  });
  loop_->run();  // until it has joined
  ask(control::Plan{}, 7);
  const auto* planned = std::get_if<control::PlanReply>(&answer_);
  ASSERT_NE(planned, nullptr);
  ASSERT_EQ(planned->sidecars.size(), 1U);
  EXPECT_EQ(planned->sidecars[0].name, "s0");
  EXPECT_EQ(planned->sidecars[0].failure, "was lost: the sidecar left the fleet");
}

TEST_F(Agent, AJobThatWaitsForItsSnapshotIsCancelled) {
  ASSERT_TRUE(start({"min_sidecars=2"}).has_value());
  EXPECT_FALSE(agent_->cancel({}).ok) << "nothing runs";
  std::optional<PublishResult> ended;
  agent_->publish({.open = []() -> Result<std::unique_ptr<WeightSource>> {
                     return fail(ErrorCode::kInternal, "nobody reads a job that waits");
                   },
                   .on_progress = {},
                   .on_snapshotted = {},
                   .on_phase = {},
                   .on_done = [&ended](PublishResult result) { ended = std::move(result); }});
  EXPECT_FALSE(agent_->cancel({.epoch = 1, .step = 1}).ok) << "it has no name yet";
  ASSERT_FALSE(ended.has_value());
  EXPECT_TRUE(agent_->cancel({}).ok);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->error->code(), ErrorCode::kCancelled);
  EXPECT_EQ(agent_->status().updates.cancelled, 1U);
  EXPECT_TRUE(agent_->status().incidents.empty());
  EXPECT_FALSE(agent_->cancel({}).ok);
}

TEST_F(Agent, ASnapshotThatIsKeptIsCancelled) {
  ASSERT_TRUE(start({"min_sidecars=2"}).has_value());
  EXPECT_FALSE(agent_->cancel({}).ok) << "nothing runs";
  std::optional<PublishResult> ended;
  agent_->publish({.open = small_model,
                   .is_kept = true,
                   .on_progress = {},
                   .on_snapshotted = [this](const Version&, std::chrono::nanoseconds,
                                            const std::string&) { loop_->stop(); },
                   .on_phase = {},
                   .on_done = [&ended](PublishResult result) { ended = std::move(result); }});
  loop_->run();
  EXPECT_FALSE(agent_->cancel({.epoch = 1, .step = 1}).ok) << "it has no name yet";
  ASSERT_FALSE(ended.has_value());
  EXPECT_TRUE(agent_->cancel({}).ok);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->error->code(), ErrorCode::kCancelled);
  EXPECT_EQ(agent_->status().updates.cancelled, 1U);
  EXPECT_TRUE(agent_->status().incidents.empty());
  EXPECT_FALSE(agent_->cancel({}).ok);
}

TEST_F(Agent, AnUpdateIsCancelledWhileItsSnapshotIsTaken) {
  ASSERT_TRUE(start().has_value());
  sidecar({.name = "s0"});
  loop_->run();  // until it has joined
  std::promise<void> reading;
  std::promise<void> resume;
  std::optional<PublishResult> ended;
  bool snapshotted = false;
  agent_->publish(
      {.open = [&reading,
                waits = resume.get_future().share()]() -> Result<std::unique_ptr<WeightSource>> {
         const auto read = [&reading, waits](std::uint64_t offset,
                                             std::span<std::byte> into) -> Result<> {
           if (offset == 0) reading.set_value();
           waits.wait();
           std::ranges::fill(into, std::byte{1});
           return {};
         };
         auto source = MemorySource::create(
             {{.info = {.name = "w", .dtype = DType::kU8, .shape = {2 * limits::kLeafBytes}},
               .bytes = read}});
         if (!source) return fail(source.error());
         return std::make_unique<MemorySource>(std::move(*source));
       },
       .on_progress = {},
       .on_snapshotted = [&](const Version&, std::chrono::nanoseconds,
                             const std::string&) { snapshotted = true; },
       .on_phase = {},
       .on_done =
           [&](PublishResult result) {
             ended = std::move(result);
             loop_->stop();
           }});
  reading.get_future().wait();
  const control::StatusReply status = agent_->status();
  EXPECT_EQ(status.running.phase, control::ProgressPhase::kSnapshot);
  EXPECT_GE(status.running.total_bytes, 2 * limits::kLeafBytes);
  EXPECT_EQ(status.activity, "taking the snapshot of " + status.running.version.to_string())
      << "it is not idle";
  const control::CancelReply reply = agent_->cancel(status.running.version);
  EXPECT_TRUE(reply.ok) << reply.reason;
  EXPECT_EQ(reply.version, status.running.version);
  EXPECT_FALSE(ended.has_value()) << "a piece is still being read";
  resume.set_value();
  loop_->run();
  ASSERT_TRUE(ended.has_value());
  ASSERT_TRUE(ended->error.has_value());
  EXPECT_EQ(ended->error->code(), ErrorCode::kCancelled) << ended->error->message();
  EXPECT_FALSE(snapshotted);
  EXPECT_EQ(agent_->status().updates.cancelled, 1U);
  EXPECT_TRUE(agent_->status().running.version.none());
  ask(control::Cancel{}, 11);
  const auto* nothing = std::get_if<control::CancelReply>(&answer_);
  ASSERT_NE(nothing, nullptr);
  EXPECT_EQ(nothing->reason, "nothing to cancel: no update is running");
}

}  // namespace
}  // namespace wsync::publish
