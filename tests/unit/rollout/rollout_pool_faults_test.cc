// Replicas that fail, rewards that throw, and harvests that are given up.
#include <atomic>
#include <limits>
#include <stdexcept>
#include <thread>

#include "shared/base/format.h"
#include "tests/unit/rollout/pool_fixture.h"

namespace wsync::rollout::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Le;

// One question at once for each of two replicas, of which the bad one has one before the good one
// answers any.
class RolloutPoolFaults : public testing::Test {
 protected:
  RolloutPoolFaults() {
    good_.script([this](const nlohmann::json& question) {
      if (waits_for_bad_.exchange(false)) bad_.wait_for_questions(1);
      return answer_by(question, step(0));
    });
  }
  // The bad one is not asked again within the test.
  [[nodiscard]] PoolOptions options() const {
    PoolOptions options = options_for({bad_.url(), good_.url()});
    options.requests = 1;
    options.retry = kNever;
    return options;
  }
  // A step's groups all come from the good one although the bad one is asked once.
  void expect_all_by_the_good_one(const PoolOptions& options, const std::string& failure) {
    const auto pool = pool_of(options);
    pool->begin(1);
    const RolloutBatch batch = collected(*pool, 1);
    EXPECT_EQ(prompts_of(batch), prompts_of(options, 3));
    for (const Group& group : batch.groups) {
      EXPECT_EQ(group.rollouts.size(), 2U);
      for (const Rollout& rollout : group.rollouts) EXPECT_EQ(rollout.replica, good_.url());
    }
    EXPECT_EQ(batch.stats.failed, 1U);
    EXPECT_THAT(batch.stats.last_failure, HasSubstr(bad_.url() + ": "));
    EXPECT_THAT(batch.stats.last_failure, HasSubstr(failure));
    EXPECT_EQ(bad_.questions().size(), 1U);
    EXPECT_EQ(good_.questions().size(), 3U);
  }

  std::atomic<bool> waits_for_bad_ = true;
  ScriptedReplica bad_;
  ScriptedReplica good_;
};

TEST_F(RolloutPoolFaults, OneThatHangsIsLate) {
  bad_.script([this](const nlohmann::json& question) {
    bad_.hold();
    return answer_by(question, step(0));
  });
  // The good one may be late as well where the machine is slow, and is asked again then.
  PoolOptions late = options();
  late.deadline = 1s;
  late.retry = 200ms;
  const auto pool = pool_of(late);
  pool->begin(1);
  const RolloutBatch batch = collected(*pool, 1);
  EXPECT_EQ(prompts_of(batch), prompts_of(late, 3));
  for (const Group& group : batch.groups)
    for (const Rollout& rollout : group.rollouts) EXPECT_EQ(rollout.replica, good_.url());
  EXPECT_GE(batch.stats.failed, 1U);
  EXPECT_THAT(batch.stats.last_failure, HasSubstr("the deadline passed"));
}

TEST_F(RolloutPoolFaults, OneThatIsNotReady) {
  bad_.script([](const nlohmann::json&) { return refused_by(503, "no weights"); });
  expect_all_by_the_good_one(options(), "is not ready: 'no weights'");
}

TEST_F(RolloutPoolFaults, OneThatAnswersGarbage) {
  bad_.script([](const nlohmann::json&) { return Reply{.body = "{\"choices\": [1, 2]}"}; });
  expect_all_by_the_good_one(options(), "the answer: choices, index");
}

TEST_F(RolloutPoolFaults, OneWithTooFewAnswers) {
  bad_.script([](nlohmann::json question) {
    question["n"] = 1;
    return answer_by(question, step(0));
  });
  expect_all_by_the_good_one(options(), "choices: expected a list of 2, found a list of 1");
}

TEST_F(RolloutPoolFaults, OneThatAbortsBecauseItSwitches) {
  bad_.script([](const nlohmann::json& question) {
    nlohmann::json answer = nlohmann::json::parse(answer_by(question, step(0)).body);
    answer["choices"][1]["finish_reason"] = "abort";
    return Reply{.body = answer.dump()};
  });
  expect_all_by_the_good_one(options(), "choice 1 was aborted by the engine");
}

TEST_F(RolloutPoolFaults, OneThatIsGone) {
  PoolOptions with_dead = options();
  {
    RawPeer gone([](RawPeer& self) { self.stop_listening(); });
    with_dead.replicas[0] = gone.url();
  }
  waits_for_bad_ = false;
  const auto pool = pool_of(with_dead);
  pool->begin(1);
  const RolloutBatch batch = collected(*pool, 1);
  EXPECT_EQ(batch.groups.size(), 3U);
  EXPECT_THAT(batch.stats.failed, Le(1U));
}

// It has taken a question, has answered a part of it, and dies.
TEST_F(RolloutPoolFaults, OneThatIsLostWhileItAnswers) {
  for (const std::string_view part : {"", "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"cho"}) {
    std::atomic<bool> is_lost = false;
    ScriptedReplica good;
    good.script([&](const nlohmann::json& question) {
      is_lost.wait(false);
      return answer_by(question, step(0));
    });
    RawPeer dying([&](RawPeer& self) {
      self.accept();
      self.read_head();
      self.stop_listening();
      self.send(part);
      self.hang_up();
      is_lost = true;
      is_lost.notify_all();
    });
    PoolOptions both = options_for({dying.url(), good.url()});
    both.requests = 1;
    both.retry = kNever;
    const auto pool = pool_of(both);
    pool->begin(1);
    const RolloutBatch batch = collected(*pool, 1);
    EXPECT_EQ(prompts_of(batch), prompts_of(both, 3));
    for (const Group& group : batch.groups)
      for (const Rollout& rollout : group.rollouts) EXPECT_EQ(rollout.replica, good.url());
    EXPECT_EQ(batch.stats.failed, 1U);
    EXPECT_THAT(batch.stats.last_failure,
                HasSubstr(dying.url() + ": the server closed the connection while"));
  }
}

// Between two steps one of two goes; the steps go on with the other, and with both when it is back.
TEST_F(RolloutPoolFaults, OneThatComesBackIsAskedAgain) {
  waits_for_bad_ = false;
  auto mortal = std::make_unique<ScriptedReplica>();
  const int port = mortal->port();
  PoolOptions both = options_for({mortal->url(), good_.url()});
  both.requests = 1;
  both.versions_count = false;
  const auto pool = pool_of(both);
  pool->begin(1);
  (void)collected(*pool, 1);
  mortal.reset();
  (void)collected(*pool, 2);  // some of it from before
  for (std::uint64_t number = 3; number <= 4; ++number) {
    const RolloutBatch batch = collected(*pool, number);
    EXPECT_EQ(prompts_of(batch), prompts_of(both, 3 * number));
    for (const Group& group : batch.groups)
      for (const Rollout& rollout : group.rollouts) EXPECT_EQ(rollout.replica, good_.url());
  }
  const ScriptedReplica again(port);
  std::uint64_t number = 5;
  while (again.questions().empty()) (void)collected(*pool, number++);
}

// Everything was asked of it, and none of it is lost.
TEST_F(RolloutPoolFaults, TheOnlyOneIsAskedAgain) {
  const auto refusals = std::make_shared<std::atomic<int>>(5);
  bad_.script([refusals](const nlohmann::json& question) {
    return refusals->fetch_sub(1) > 0 ? refused_by(503, "starting") : answer_by(question, step(0));
  });
  const PoolOptions alone = options_for({bad_.url()});
  const auto pool = pool_of(alone);
  pool->begin(1);
  const RolloutBatch batch = collected(*pool, 1);
  EXPECT_EQ(prompts_of(batch), prompts_of(alone, 3));
  EXPECT_EQ(batch.stats.failed, 5U);
  EXPECT_EQ(bad_.questions().size(), 8U);
}

TEST_F(RolloutPoolFaults, ARolloutBatchThatIsLateSaysWhyAndCanBeAskedForAgain) {
  const auto broken = std::make_shared<std::atomic<bool>>(true);
  bad_.script([broken](const nlohmann::json& question) {
    return *broken ? refused_by(400, "temperature: too hot") : answer_by(question, step(0));
  });
  const auto pool = pool_of(options_for({bad_.url()}));
  pool->begin(1);
  bad_.wait_for_questions(2);
  expect_error(pool->collect(1, 1ms), ErrorCode::kDeadline, "rollouts of step 1: 0 of 3 groups");
  // The second question comes after a first that has failed.
  bad_.wait_for_questions(bad_.questions().size() + 8);
  expect_error(pool->collect(1, 1ms), ErrorCode::kDeadline, "'temperature: too hot'");
  *broken = false;
  EXPECT_GE(collected(*pool, 1).stats.failed, 2U);
}

TEST_F(RolloutPoolFaults, ARolloutBatchThatIsLateNamesTheVersionThatIsMissing) {
  const auto pool = pool_of(options_for({bad_.url()}));
  pool->begin(1);
  (void)collected(*pool, 1);
  bad_.wait_for_looks(bad_.looks() + 2);
  expect_error(pool->collect(2, 1ms), ErrorCode::kDeadline,
               bad_.url() + " serves 1.0, but weights of step 1 are needed");
}

TEST_F(RolloutPoolFaults, AReplicaThatIsLostWhileItIsLookedAtCounts) {
  bad_.be_ready(500);
  PoolOptions alone = options_for({bad_.url()});
  const auto pool = pool_of(alone);
  pool->begin(5);
  bad_.wait_for_looks(2);
  bad_.serve(step(4));
  bad_.be_ready(200);
  EXPECT_GE(collected(*pool, 5).stats.failed, 1U);
}

TEST_F(RolloutPoolFaults, ARewardThatThrowsEndsTheRolloutBatch) {
  const auto batch = [this](Reward reward) {
    const auto pool = pool_of(options_for({good_.url()}), std::move(reward));
    pool->begin(1);
    auto first = pool->collect(1, kWaitLimit);
    const auto again = pool->collect(1, kWaitLimit);
    EXPECT_FALSE(again) << "not before it begins once more";
    return first;
  };
  waits_for_bad_ = false;
  expect_error(batch([](const Problem&, std::string_view) -> double {
                 throw std::runtime_error("no such key");
               }),
               ErrorCode::kInternal, "it threw 'no such key'");
  expect_error(batch([](const Problem&, std::string_view) -> double { throw 7; }),
               ErrorCode::kInternal, "not a std::exception");
  expect_error(batch([](const Problem&, std::string_view) {
                 return std::numeric_limits<double>::quiet_NaN();
               }),
               ErrorCode::kInternal, "the reward function of problem 'reverse ");
}

// What was answered in time is not lost with it, and a pool that begins anew asks for it again.
TEST_F(RolloutPoolFaults, ARewardThatThrowsOnceDoesNotEndThePool) {
  waits_for_bad_ = false;
  std::atomic<bool> throws = true;
  const PoolOptions options = options_for({good_.url()});
  const auto pool =
      pool_of(options, [&](const Problem& problem, std::string_view completion) -> double {
        if (completion == problem.answer && throws.exchange(false))
          throw std::runtime_error("the judge is away");
        return exact_match(problem, completion);
      });
  pool->begin(1);
  expect_error(pool->collect(1, kWaitLimit), ErrorCode::kInternal, "'the judge is away'");
  pool->begin(1);
  const RolloutBatch batch = collected(*pool, 1);
  EXPECT_EQ(prompts_of(batch), prompts_of(options, 3));
  EXPECT_EQ(batch.stats.failed, 0U) << "the engine has done nothing wrong";
}

// The square of such a reward would be beyond double, and the advantage 0 without a word.
TEST_F(RolloutPoolFaults, ARewardThatIsTooLargeEndsTheRolloutBatch) {
  waits_for_bad_ = false;
  for (const double reward : {-1.7e308, 1.1e9, std::numeric_limits<double>::infinity()}) {
    const auto pool = pool_of(options_for({good_.url()}),
                              [=](const Problem&, std::string_view) { return reward; });
    pool->begin(1);
    expect_error(pool->collect(1, kWaitLimit), ErrorCode::kInternal,
                 fmt::format("expected a number from -1000000000 to 1000000000, found {}", reward));
  }
}

TEST_F(RolloutPoolFaults, ARewardIsToldTheAnswerWithoutItsEnd) {
  waits_for_bad_ = false;
  std::atomic<int> right = 0;
  std::atomic<int> wrong = 0;
  const auto pool = pool_of(options_for({good_.url()}),
                            [&](const Problem& problem, std::string_view completion) -> double {
                              if (completion == problem.answer) ++right;
                              if (completion == "-") ++wrong;
                              return 0;
                            });
  pool->begin(1);
  const RolloutBatch batch = collected(*pool, 1);
  EXPECT_EQ(right, 3);
  EXPECT_EQ(wrong, 3);
  for (const Group& group : batch.groups)
    for (const Rollout& rollout : group.rollouts) EXPECT_EQ(rollout.advantage, 0);
}

// With a question that runs, and a harvest that waits for it.
TEST_F(RolloutPoolFaults, CancelEndsARolloutBatchThatWaits) {
  bad_.script([this](const nlohmann::json& question) {
    bad_.hold();
    return answer_by(question, step(0));
  });
  const auto pool = pool_of(options_for({bad_.url()}));
  pool->begin(1);
  std::thread canceller([&] {
    bad_.wait_for_held(3);
    pool->cancel();
  });
  expect_error(pool->collect(1, kWaitLimit), ErrorCode::kCancelled, "step 1: cancelled");
  canceller.join();
  bad_.release();
  expect_error(pool->collect(1, kWaitLimit), ErrorCode::kCancelled, "step 1: cancelled");
}

TEST_F(RolloutPoolFaults, CancelEndsARolloutBatchThatWaitsForAVersion) {
  const auto pool = pool_of(options_for({bad_.url()}));
  pool->begin(1);
  (void)collected(*pool, 1);
  std::thread canceller([&] {
    bad_.wait_for_looks(bad_.looks() + 2);
    pool->cancel();
  });
  expect_error(pool->collect(2, kWaitLimit), ErrorCode::kCancelled, "step 2: cancelled");
  canceller.join();
}

// The destructor of the pool returns although its question is never answered.
TEST_F(RolloutPoolFaults, APoolEndsWithAQuestionThatRuns) {
  bad_.script([this](const nlohmann::json& question) {
    bad_.hold();
    return answer_by(question, step(0));
  });
  {
    const auto pool = pool_of(options_for({bad_.url()}));
    pool->begin(1);
    bad_.wait_for_held(3);
  }
  EXPECT_EQ(bad_.questions().size(), 3U);
}

}  // namespace
}  // namespace wsync::rollout::test
