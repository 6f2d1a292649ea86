// Led steps over real sockets: followers in threads, and one in a process that is killed.
#include "inference_side/reference_engine/step_group.h"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>

#include "inference_side/reference_engine/step_gate.h"
#include "tests/support/versions.h"

namespace wsync::engine::reference {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kWaitLimit = 20s;  // fails a test that would hang; nothing takes that long

class RunDirectory {
 public:
  RunDirectory() : path_(testing::TempDir() + "wsync-steps-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  ~RunDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string socket() const { return step_socket_path(path_, "r0"); }

 private:
  std::string path_;
};

GroupOptions options_of(const RunDirectory& directory, std::uint32_t rank,
                        std::uint32_t world_size) {
  return {.path = directory.socket(),
          .world_size = world_size,
          .rank = rank,
          .step_deadline = std::chrono::milliseconds(5'000)};
}

// A follower with a gate, counting what it is told.
class GatedRole final : public FollowerRole {
 public:
  GatedRole(StepGate gate, std::uint64_t share) : gate_(std::move(gate)), share_(share) {}
  Result<> enter(std::uint64_t /*step*/, const Version& version) override {
    const auto began = gate_.enter(version);
    if (!began) return fail(began.error());
    return {};
  }
  Version holds() override { return gate_.view().version; }
  Result<Reading> read(const collective::Team& /*team*/) override {
    return Reading{.value = share_};
  }
  void finish(std::uint64_t step, const Reading& total) override {
    gate_.leave();
    last_step_ = step;
    last_total_ = total.value;
  }
  void abort(std::uint64_t /*step*/) override {
    gate_.leave();
    ++aborts_;
  }
  void stop(std::uint64_t /*step*/) override {
    (void)gate_.stop();
    ++stops_;
  }
  StepGate gate_;
  std::atomic<std::uint64_t> share_;
  std::atomic<std::uint64_t> last_step_ = 0;
  std::atomic<std::uint64_t> last_total_ = 0;
  std::atomic<std::uint64_t> aborts_ = 0;
  std::atomic<std::uint64_t> stops_ = 0;
  std::atomic<std::uint64_t> breaks_ = 0;
};

// A follower's serving loop in a thread.
class FollowerThread {
 public:
  FollowerThread(const GroupOptions& options, GatedRole& role)
      : thread_([options, &role](const std::stop_token& stop) {
          GroupFollower follower(options, role);
          while (!stop.stop_requested()) {
            if (follower.tend(now() + 5ms, -1)) continue;
            (void)role.gate_.stop();
            ++role.breaks_;
          }
        }) {}

 private:
  std::jthread thread_;
};

void form(GroupLeader& leader) {
  const TimePoint until = now() + kWaitLimit;
  while (!leader.whole() && now() < until) ASSERT_TRUE(leader.tend(now() + 5ms, -1));
  ASSERT_TRUE(leader.whole());
}

TEST(StepSocketPath, is_short_and_never_shared) {
  EXPECT_EQ(step_socket_path("/run/w", "r0"), "/run/w/steps-r0.sock");
  const std::string slashed = step_socket_path("/run/w", "../../etc/r0");
  EXPECT_EQ(slashed.find('/', sizeof "/run/w"), std::string::npos);
  EXPECT_NE(slashed, step_socket_path("/run/w", "..-..-etc-r0"));
  EXPECT_LE(step_socket_path("/run/w", std::string(128, 'x')).size(), kSocketPathBytes);
  EXPECT_NE(step_socket_path("/run/w", ""), step_socket_path("/run/w", "r0"));
}

TEST(StepGroup, all_ranks_run_the_leaders_steps_and_stop_at_the_same_one) {
  const RunDirectory directory;
  GatedRole one(StepGate::holding(kV1), 10);
  GatedRole two(StepGate::holding(kV1), 100);
  auto leader = GroupLeader::create(options_of(directory, 0, 3));
  ASSERT_TRUE(leader) << leader.error().message();
  const FollowerThread first(options_of(directory, 1, 3), one);
  const FollowerThread second(options_of(directory, 2, 3), two);
  form(*leader);
  EXPECT_EQ(one.stops_, 1U);  // a new group begins with every rank outside of steps
  for (std::uint64_t i = 1; i <= 50; ++i) {
    const auto end = leader->go(kV1, [&] { return Reading{.value = i}; });
    ASSERT_TRUE(end) << end.error().message();
    ASSERT_FALSE(end->refusal);
    EXPECT_EQ(end->total.value, 110 + i);
  }
  ASSERT_TRUE(leader->stop());
  EXPECT_EQ(leader->step(), 50U);
  for (const GatedRole* role : {&one, &two}) {
    EXPECT_EQ(role->last_step_, 50U);
    EXPECT_EQ(role->last_total_, 160U);
    EXPECT_EQ(role->stops_, 2U);
    EXPECT_EQ(role->gate_.view().phase, GatePhase::kPaused);
    EXPECT_FALSE(role->gate_.view().inside);
    EXPECT_EQ(role->breaks_, 0U);
  }
}

TEST(StepGroup, a_rank_with_another_version_refuses_and_nobody_runs_the_step) {
  const RunDirectory directory;
  GatedRole one(StepGate::holding(kV1), 10);
  GatedRole two(StepGate::holding(kV2), 100);
  auto leader = GroupLeader::create(options_of(directory, 0, 3));
  ASSERT_TRUE(leader);
  const FollowerThread first(options_of(directory, 1, 3), one);
  const FollowerThread second(options_of(directory, 2, 3), two);
  form(*leader);
  bool read = false;
  const auto end = leader->go(kV1, [&] {
    read = true;
    return Reading{};
  });
  ASSERT_TRUE(end) << end.error().message();
  ASSERT_TRUE(end->refusal);
  EXPECT_EQ(end->refusal->rank, 2U);
  EXPECT_EQ(end->refusal->holds, kV2);
  EXPECT_FALSE(read);
  ASSERT_TRUE(leader->stop());
  EXPECT_EQ(one.last_step_, 0U);
  EXPECT_FALSE(one.gate_.view().inside);
  EXPECT_EQ(one.gate_.view().phase, GatePhase::kPaused);
  // The group is good: with one version again, the next step runs.
  ASSERT_TRUE(two.gate_.commit(kV1));
  const auto next = leader->go(kV1, [] { return Reading{.value = 1}; });
  ASSERT_TRUE(next);
  EXPECT_FALSE(next->refusal);
  EXPECT_EQ(next->total.value, 111U);
}

TEST(StepGroup, a_loading_rank_refuses) {
  const RunDirectory directory;
  GatedRole one(StepGate{}, 10);
  auto leader = GroupLeader::create(options_of(directory, 0, 2));
  ASSERT_TRUE(leader);
  const FollowerThread first(options_of(directory, 1, 2), one);
  form(*leader);
  const auto end = leader->go({}, [] { return Reading{}; });
  ASSERT_TRUE(end);
  ASSERT_TRUE(end->refusal);
  EXPECT_TRUE(end->refusal->holds.none());
}

TEST(StepGroup, a_lost_leader_pauses_its_followers_and_a_new_one_forms_the_group_again) {
  const RunDirectory directory;
  GatedRole one(StepGate::holding(kV1), 10);
  const FollowerThread first(options_of(directory, 1, 2), one);
  {
    auto leader = GroupLeader::create(options_of(directory, 0, 2));
    ASSERT_TRUE(leader);
    form(*leader);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(leader->go(kV1, [] { return Reading{}; }));
  }
  auto next = GroupLeader::create(options_of(directory, 0, 2));
  ASSERT_TRUE(next);
  form(*next);
  EXPECT_EQ(one.breaks_, 1U);
  EXPECT_EQ(one.gate_.view().phase, GatePhase::kPaused);
  EXPECT_EQ(next->step(), 3U);  // the followers' steps go on from where they were
  ASSERT_TRUE(next->go(kV1, [] { return Reading{}; }));
  EXPECT_EQ(next->step(), 4U);
}

TEST(StepGroup, strangers_and_doubles_are_turned_away) {
  const RunDirectory directory;
  GatedRole one(StepGate::holding(kV1), 10);
  auto leader = GroupLeader::create(options_of(directory, 0, 2));
  ASSERT_TRUE(leader);
  const FollowerThread first(options_of(directory, 1, 2), one);
  form(*leader);
  auto garbage = connect_unix(directory.socket(), now() + kWaitLimit);
  auto wrong_size = connect_unix(directory.socket(), now() + kWaitLimit);
  auto twice = connect_unix(directory.socket(), now() + kWaitLimit);
  ASSERT_TRUE(garbage && wrong_size && twice);
  ASSERT_TRUE(send_some(garbage->get(), std::vector<std::byte>(64, std::byte{0x5a})));
  StepChannel wrong(std::move(*wrong_size));
  StepChannel twin(std::move(*twice));
  ASSERT_TRUE(
      wrong.send({.kind = StepKind::kJoin, .rank = 1, .world_size = 3}, now() + kWaitLimit));
  ASSERT_TRUE(twin.send({.kind = StepKind::kJoin, .rank = 1, .world_size = 2}, now() + kWaitLimit));
  const auto closed = [](StepChannel& channel) {
    const auto message = channel.receive();
    return !message && message.error().code() == ErrorCode::kPeerLost;
  };
  const TimePoint until = now() + kWaitLimit;
  bool gone[2] = {false, false};
  while (!(gone[0] && gone[1]) && now() < until) {
    ASSERT_TRUE(leader->tend(now() + 5ms, -1));
    gone[0] = gone[0] || closed(wrong);
    gone[1] = gone[1] || closed(twin);
  }
  EXPECT_TRUE(gone[0] && gone[1]);
  const auto end = leader->go(kV1, [] { return Reading{.value = 1}; });
  ASSERT_TRUE(end);
  EXPECT_EQ(end->total.value, 11U);
  EXPECT_EQ(one.breaks_, 0U);
}

TEST(StepGroup, a_silent_rank_breaks_the_group_at_the_deadline) {
  const RunDirectory directory;
  GroupOptions options = options_of(directory, 0, 2);
  options.step_deadline = 50ms;
  auto leader = GroupLeader::create(options);
  ASSERT_TRUE(leader);
  auto socket = connect_unix(directory.socket(), now() + kWaitLimit);
  ASSERT_TRUE(socket);
  StepChannel silent(std::move(*socket));
  ASSERT_TRUE(
      silent.send({.kind = StepKind::kJoin, .rank = 1, .world_size = 2}, now() + kWaitLimit));
  ASSERT_TRUE(silent.send({.kind = StepKind::kStopped, .rank = 1}, now() + kWaitLimit));
  form(*leader);
  const auto end = leader->go(kV1, [] { return Reading{}; });
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), ErrorCode::kDeadline);
  EXPECT_FALSE(leader->whole());
  EXPECT_EQ(leader->joined(), 1U);
}

TEST(StepGroup, a_rank_that_has_another_agreement_is_turned_away) {
  const RunDirectory directory;
  GroupOptions options = options_of(directory, 0, 2);
  options.agreement = 7;
  auto leader = GroupLeader::create(options);
  ASSERT_TRUE(leader);
  for (const std::uint64_t agreement : {8U, 7U}) {
    auto socket = connect_unix(directory.socket(), now() + kWaitLimit);
    ASSERT_TRUE(socket);
    StepChannel rank(std::move(*socket));
    ASSERT_TRUE(rank.send({.kind = StepKind::kJoin, .rank = 1, .world_size = 2, .value = agreement},
                          now() + kWaitLimit));
    ASSERT_TRUE(rank.send({.kind = StepKind::kStopped, .rank = 1}, now() + kWaitLimit));
    if (agreement == options.agreement) {
      form(*leader);
      EXPECT_TRUE(leader->whole());
      continue;
    }
    auto answer = rank.receive();
    while (answer && !answer->has_value()) {
      (void)leader->tend(now() + 10ms, -1);
      answer = rank.receive();
    }
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::kPeerLost);
    EXPECT_EQ(leader->joined(), 1U);
  }
}

TEST(StepGroup, a_killed_rank_is_seen_by_the_leader_and_by_the_other_ranks) {
  const RunDirectory directory;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // a rank of its own, until it is killed
    GatedRole role(StepGate::holding(kV1), 1);
    GroupFollower follower(options_of(directory, 1, 3), role);
    const TimePoint until = now() + kWaitLimit;
    while (now() < until) (void)follower.tend(until, -1);
    _exit(0);
  }
  GatedRole other(StepGate::holding(kV1), 10);
  auto leader = GroupLeader::create(options_of(directory, 0, 3));
  ASSERT_TRUE(leader);
  const FollowerThread thread(options_of(directory, 2, 3), other);
  form(*leader);
  ASSERT_TRUE(leader->go(kV1, [] { return Reading{}; }));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto end = leader->go(kV1, [] { return Reading{}; });
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(end.error().message(), HasSubstr("rank 1 was lost"));
  const TimePoint until = now() + kWaitLimit;
  while (other.breaks_ == 0 && now() < until) std::this_thread::yield();
  EXPECT_EQ(other.breaks_, 1U);
  EXPECT_EQ(other.gate_.view().phase, GatePhase::kPaused);
  EXPECT_FALSE(other.gate_.view().inside);
}

}  // namespace
}  // namespace wsync::engine::reference
