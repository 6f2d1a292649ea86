// What a pool asks for when, and what a step is given of it.
#include "trainer_side/rollout/rollout_pool.h"

#include <atomic>
#include <set>

#include "tests/unit/rollout/pool_fixture.h"

namespace wsync::rollout::test {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RolloutPool, AStepGetsItsGroupsInOrderScored) {
  ScriptedReplica replica;
  const PoolOptions options = options_for({replica.url()});
  const auto pool = pool_of(options);
  pool->begin(1);
  const RolloutBatch batch = collected(*pool, 1);
  EXPECT_EQ(prompts_of(batch), prompts_of(options, 3));
  for (const Group& group : batch.groups) {
    ASSERT_EQ(group.rollouts.size(), 2U);
    EXPECT_EQ(group.rollouts[0].tokens.size(), 4U) << "three digits and the end";
    EXPECT_EQ(group.rollouts[0].reward, 1);
    EXPECT_EQ(group.rollouts[1].reward, 0);
    EXPECT_THAT(group.rollouts[0].advantage, DoubleNear(0.5 / 0.5001, 1e-12));
    EXPECT_THAT(group.rollouts[1].advantage, DoubleNear(-0.5 / 0.5001, 1e-12));
    EXPECT_EQ(group.rollouts[0].replica, replica.url());
    EXPECT_GE(group.seconds, 0);
  }
  EXPECT_EQ(batch.stats.dropped_stale, 0U);
  EXPECT_EQ(batch.stats.failed, 0U);
  EXPECT_EQ(batch.stats.last_failure, "");
}

TEST(RolloutPool, WhatIsAskedIsWhatTheOptionsSay) {
  ScriptedReplica replica;
  PoolOptions options = options_for({replica.url()});
  options.temperature = 0.75;
  const auto pool = pool_of(options);
  pool->begin(1);
  (void)collected(*pool, 1);
  for (const nlohmann::json& question : replica.questions()) {
    EXPECT_EQ(question.at("n"), 2);
    EXPECT_EQ(question.at("max_tokens"), 8);
    EXPECT_EQ(question.at("temperature"), 0.75);
  }
}

// With the versions as they come, each pool asks the same, whatever replica is asked.
TEST(RolloutPool, ARunRepeats) {
  const auto run = [](std::uint64_t seed, std::uint64_t first) {
    ScriptedReplica replica;
    PoolOptions options = options_for({replica.url()});
    options.versions_count = false;
    options.seed = seed;
    const auto pool = pool_of(options);
    pool->begin(first);
    std::vector<std::string> prompts;
    for (std::uint64_t number = first; number < 4; ++number)
      for (const std::string& prompt : prompts_of(collected(*pool, number)))
        prompts.push_back(prompt);
    // The step after it may have been asked for, or not.
    Asked asked = asked_of(replica);
    std::erase_if(asked, [&](const auto& one) {
      return std::find(prompts.begin(), prompts.end(), one.first) == prompts.end();
    });
    return std::pair(prompts, asked);
  };
  const auto once = run(5, 1);
  EXPECT_EQ(once.first.size(), 9U);
  EXPECT_EQ(run(5, 1), once);
  EXPECT_NE(run(6, 1).first, once.first);
  std::set<std::uint64_t> seeds;
  for (const auto& [prompt, seed] : once.second) {
    seeds.insert(seed);
    EXPECT_LT(seed, std::uint64_t{1} << 62U) << "some engines take 63 bits";
  }
  EXPECT_EQ(seeds.size(), 9U);
  // A run that goes on at step 3 sees what it would have seen.
  EXPECT_EQ(run(5, 3).first, std::vector<std::string>(once.first.begin() + 6, once.first.end()));
}

TEST(RolloutPool, WithoutStalenessNothingIsAskedBeforeTheVersionIsServed) {
  ScriptedReplica replica;
  replica.script(
      [&](const nlohmann::json& question) { return answer_by(question, replica.served()); });
  const auto pool = pool_of(options_for({replica.url()}));
  pool->begin(1);
  (void)collected(*pool, 1);
  for (std::uint64_t published = 1; published <= 3; ++published) {
    const std::size_t looks = replica.looks();
    replica.wait_for_looks(looks + 3);
    EXPECT_EQ(replica.questions().size(), 3 * published) << "none for the step after it";
    replica.serve(step(published));
    const RolloutBatch batch = collected(*pool, published + 1);
    ASSERT_EQ(batch.groups.size(), 3U);
    for (const Group& group : batch.groups) EXPECT_EQ(oldest_step(group), published);
    EXPECT_EQ(batch.stats.failed + batch.stats.dropped_stale, 0U);
  }
}

// A replica that switches tells that it is not ready; that is no failure.
TEST(RolloutPool, AReplicaThatSwitchesIsWaitedFor) {
  ScriptedReplica replica;
  PoolOptions options = options_for({replica.url()});
  options.retry = kNever;
  const auto pool = pool_of(options);
  pool->begin(1);
  (void)collected(*pool, 1);
  replica.be_ready(503, "switching");
  // A look that has found it ready before is over when the next one begins.
  replica.wait_for_looks(replica.looks() + 1);
  replica.serve(step(1));
  replica.wait_for_looks(replica.looks() + 3);
  EXPECT_EQ(replica.questions().size(), 3U);
  expect_error(pool->collect(2, std::chrono::milliseconds(1)), ErrorCode::kDeadline,
               "/ready is not ready: 'switching'");
  replica.be_ready(200);
  EXPECT_EQ(collected(*pool, 2).stats.failed, 0U);
}

TEST(RolloutPool, AStepAheadIsGeneratedWithTheWeightsThatAreThere) {
  ScriptedReplica replica;
  PoolOptions options = options_for({replica.url()});
  options.max_staleness = 1;
  const auto pool = pool_of(options);
  pool->begin(1);
  EXPECT_EQ(prompts_of(collected(*pool, 1)), prompts_of(options, 3));
  EXPECT_EQ(prompts_of(collected(*pool, 2)), prompts_of(options, 6));
  replica.wait_for_looks(replica.looks() + 2);
  EXPECT_EQ(replica.questions().size(), 6U) << "step 3 needs step 1";
  replica.serve(step(1));
  EXPECT_EQ(prompts_of(collected(*pool, 3)), prompts_of(options, 9));
  replica.wait_for_looks(replica.looks() + 2);
  EXPECT_EQ(replica.questions().size(), 9U) << "step 4 needs step 2";
}

TEST(RolloutPool, WithoutVersionsNothingIsWaitedForAndNothingDropped) {
  ScriptedReplica replica;
  replica.serve({});
  replica.be_ready(503, "nobody asks");
  PoolOptions options = options_for({replica.url()});
  options.versions_count = false;
  const auto pool = pool_of(options);
  pool->begin(7);
  for (std::uint64_t number = 7; number < 12; ++number)
    EXPECT_EQ(prompts_of(collected(*pool, number)), prompts_of(options, 3 * number));
  EXPECT_EQ(replica.looks(), 0U);
}

// It was known to serve step 1, and has gone back.
TEST(RolloutPool, WhatIsTooOldIsDroppedAndGeneratedAnew) {
  std::atomic<int> old_ones = 2;
  ScriptedReplica replica;
  const auto pool = pool_of(options_for({replica.url()}));
  pool->begin(1);
  (void)collected(*pool, 1);
  const Asked first = asked_of(replica);
  replica.script([&](const nlohmann::json& question) {
    return answer_by(question, step(old_ones.fetch_sub(1) > 0 ? 0 : 1));
  });
  replica.serve(step(1));
  const RolloutBatch batch = collected(*pool, 2);
  EXPECT_EQ(batch.stats.dropped_stale, 2U);
  EXPECT_EQ(batch.stats.failed, 0U);
  for (const Group& group : batch.groups) EXPECT_EQ(oldest_step(group), 1U);
  Asked asked;
  for (const auto& one : asked_of(replica))
    if (std::find(first.begin(), first.end(), one) == first.end()) asked.push_back(one);
  EXPECT_EQ(asked.size(), 5U);
  const std::set<std::pair<std::string, std::uint64_t>> different(asked.begin(), asked.end());
  EXPECT_EQ(different.size(), 3U) << "the same problems with the same seeds";
}

// One token of one answer decides.
TEST(RolloutPool, TheOldestTokenIsWhatCounts) {
  for (const std::uint32_t allowed : {0U, 1U}) {
    std::atomic<bool> mixed = true;
    ScriptedReplica replica;
    PoolOptions options = options_for({replica.url()});
    options.groups = 1;
    options.requests =
        1;  // the first question is of the group that is harvested, not of a later one
    options.max_staleness = allowed;
    const auto pool = pool_of(options);
    replica.script([&](const nlohmann::json& question) {
      if (!mixed.exchange(false)) return answer_by(question, step(1));
      return Reply{.body = nlohmann::json{{"choices",
                                           {choice(0, "12\n", {{3, step(1)}}),
                                            choice(1, "123\n", {{1, step(0)}, {3, step(1)}})}}}
                               .dump()};
    });
    replica.serve(step(1));
    pool->begin(2);
    const RolloutBatch batch = collected(*pool, 2);
    EXPECT_EQ(batch.stats.dropped_stale, 1 - allowed);
    EXPECT_EQ(oldest_step(batch.groups.at(0)), 1 - allowed);
  }
}

// A replica that has come over from another run, whose steps were more.
TEST(RolloutPool, VersionsOfAnOlderEpochAreAnotherRuns) {
  ScriptedReplica replica;
  replica.serve({.epoch = 1, .step = 50});
  PoolOptions options = options_for({replica.url()});
  options.max_staleness = 9;  // no step is needed, and the epoch is all the same
  const auto pool = pool_of(options);
  pool->begin(2, 2);
  replica.wait_for_looks(3);
  EXPECT_EQ(replica.questions().size(), 0U);
  expect_error(pool->collect(2, std::chrono::milliseconds(1)), ErrorCode::kDeadline,
               replica.url() + " serves 1.50 of another run, but weights of epoch 2 are needed");
  replica.serve({.epoch = 2, .step = 1});
  const RolloutBatch batch = collected(*pool, 2);
  for (const Group& group : batch.groups) EXPECT_EQ(oldest_epoch(group), 2U);
  EXPECT_EQ(batch.stats.dropped_stale, 0U);
}

// Rank 0 is a new process while an answer is generated: the same step is served under two names.
TEST(RolloutPool, AnAnswerWithATokenOfAnOlderEpochIsGeneratedAnew) {
  const Version before{.epoch = 1, .step = 4};
  const Version after{.epoch = 2, .step = 4};
  for (const std::uint32_t min_epoch : {1U, 2U}) {
    std::atomic<bool> mixed = true;
    ScriptedReplica replica;
    PoolOptions options = options_for({replica.url()});
    options.groups = 1;
    const auto pool = pool_of(options);
    replica.script([&](const nlohmann::json& question) {
      if (!mixed.exchange(false)) return answer_by(question, after);
      return Reply{.body = nlohmann::json{{"choices",
                                           {choice(0, "12\n", {{3, after}}),
                                            choice(1, "123\n", {{1, before}, {3, after}})}}}
                               .dump()};
    });
    replica.serve(after);
    pool->begin(5, min_epoch);
    const RolloutBatch batch = collected(*pool, 5);
    EXPECT_EQ(batch.stats.dropped_stale, min_epoch - 1);
    EXPECT_EQ(oldest_epoch(batch.groups.at(0)), min_epoch);
  }
}

// What a replica was known to serve before is looked at anew.
TEST(RolloutPool, ToBeginWithANewEpochWaitsForIt) {
  ScriptedReplica replica;
  replica.serve({.epoch = 1, .step = 4});
  const auto pool = pool_of(options_for({replica.url()}));
  pool->begin(5, 1);
  (void)collected(*pool, 5);
  pool->begin(5, 2);
  replica.wait_for_looks(replica.looks() + 3);
  EXPECT_EQ(replica.questions().size(), 3U);
  replica.serve({.epoch = 2, .step = 4});
  EXPECT_EQ(collected(*pool, 5).stats.dropped_stale, 0U);
  EXPECT_EQ(replica.questions().size(), 6U);
}

TEST(RolloutPool, AReplicaIsAskedNoMoreAtOnceThanAllowed) {
  std::atomic<int> now_asked = 0;
  std::atomic<int> max_asked = 0;
  ScriptedReplica replica;
  replica.script([&](const nlohmann::json& question) {
    const int asked = ++now_asked;
    int max = max_asked;
    while (asked > max && !max_asked.compare_exchange_weak(max, asked)) {
    }
    replica.hold();
    --now_asked;
    return answer_by(question, step(0));
  });
  PoolOptions options = options_for({replica.url()});
  options.groups = 8;
  options.requests = 2;
  const auto pool = pool_of(options);
  pool->begin(1);
  replica.wait_for_held(2);
  replica.release();
  EXPECT_EQ(collected(*pool, 1).groups.size(), 8U);
  EXPECT_EQ(max_asked, 2);
}

TEST(RolloutPool, ToBeginOnceMoreForgetsWhatWasThere) {
  std::atomic<bool> first = true;
  ScriptedReplica replica;
  replica.script([&](const nlohmann::json& question) {
    if (first.exchange(false)) replica.hold();
    return answer_by(question, step(30));
  });
  replica.serve(step(30));
  const PoolOptions options = options_for({replica.url()});
  const auto pool = pool_of(options);
  pool->begin(1);
  replica.wait_for_held(1);
  pool->begin(21);
  replica.release();
  EXPECT_EQ(prompts_of(collected(*pool, 21)), prompts_of(options, 63));
}

TEST(RolloutPool, OptionsThatMakeNoSenseAreNamed) {
  const auto why = [](const std::function<void(PoolOptions&)>& change) {
    PoolOptions options = options_for({"http://127.0.0.1:1", "http://127.0.0.1:2"});
    change(options);
    const auto pool = RolloutPool::create(options, task());
    EXPECT_FALSE(pool);
    if (pool) return std::string("not refused");
    EXPECT_EQ(pool.error().code(), ErrorCode::kInvalidInput);
    return pool.error().message();
  };
  EXPECT_THAT(why([](PoolOptions& o) { o.replicas.clear(); }),
              HasSubstr("replicas: expected 1 to 1024, found 0"));
  EXPECT_THAT(why([](PoolOptions& o) { o.replicas[1] = o.replicas[0]; }),
              HasSubstr("replicas: expected each once"));
  EXPECT_THAT(why([](PoolOptions& o) { o.replicas[1] = "engine"; }),
              HasSubstr("replicas: 'engine': it does not begin with http://"));
  EXPECT_THAT(why([](PoolOptions& o) { o.requests = 0; }), HasSubstr("requests: expected 1 to"));
  EXPECT_THAT(why([](PoolOptions& o) { o.requests = 513; }),
              HasSubstr("requests: expected 1 to 512, found 513"));
  EXPECT_THAT(why([](PoolOptions& o) { o.groups = 0; }), HasSubstr("groups: expected 1 to"));
  EXPECT_THAT(why([](PoolOptions& o) { o.groups = 65537; }), HasSubstr("groups:"));
  EXPECT_THAT(why([](PoolOptions& o) { o.max_staleness = 65536 / 3; }),
              HasSubstr("max_staleness: expected 0 to 21844, found 21845"));
  EXPECT_THAT(why([](PoolOptions& o) { o.answers = 0; }), HasSubstr("answers: expected 1 to 128"));
  EXPECT_THAT(why([](PoolOptions& o) { o.answers = 129; }), HasSubstr("found 129"));
  EXPECT_THAT(why([](PoolOptions& o) { o.max_tokens = 0; }), HasSubstr("max_tokens: expected 1"));
  EXPECT_THAT(why([](PoolOptions& o) { o.max_tokens = (1U << 20U); }),
              HasSubstr("max_tokens: expected 1 to 524288"));
  EXPECT_THAT(why([](PoolOptions& o) { o.temperature = -1; }),
              HasSubstr("temperature: expected 0 or a finite number above it, found -1"));
  EXPECT_THAT(why([](PoolOptions& o) { o.temperature = std::nan(""); }), HasSubstr("found nan"));
  EXPECT_THAT(why([](PoolOptions& o) { o.deadline = {}; }), HasSubstr("deadline: expected 1 to"));
  EXPECT_THAT(why([](PoolOptions& o) { o.retry = std::chrono::milliseconds(-1); }),
              HasSubstr("retry: expected 1 to 86400000 ms, found -1 ms"));
}

}  // namespace
}  // namespace wsync::rollout::test
