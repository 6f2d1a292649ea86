// What ranks train on while engines answer: a step that is run again, a group that breaks, a rank 0
// that is new.
#include "trainer_side/run/rollouts.h"

#include <array>
#include <atomic>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "shared/process_group/memory/host_segment.h"
#include "shared/process_group/regroupable_group.h"
#include "tests/support/captured_log.h"
#include "tests/unit/rollout/scripted_replica.h"
#include "trainer_side/run/setup.h"
#include "trainer_side/training/run_state.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using rollout::test::answer_by;
using rollout::test::prompt_of;
using rollout::test::ScriptedReplica;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using training::MicroBatch;

constexpr std::uint32_t kRolloutRanks = 2;  // data-parallel ones
constexpr std::uint64_t kFirstGenerated = 4;
constexpr std::size_t kGroupsOfStep = 4;

// The ranks of a run in threads, and an engine; between two calls nothing runs.
class TrainRollouts : public testing::Test {
 protected:
  using Batches = Result<std::optional<std::vector<MicroBatch>>>;
  struct Rank {
    std::unique_ptr<collective::RegroupableGroup> group;
    std::unique_ptr<training::TrainingRank> training;
    std::unique_ptr<StepRollouts> rollouts;
  };

  // Of every rank at once, each in a thread.
  template <class T>
  std::vector<T> together(const std::function<T(Rank&)>& call) {
    std::vector<std::optional<T>> results(kRolloutRanks);
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t i = 0; i < kRolloutRanks; ++i)
        threads.emplace_back([&, i] { results[i] = call(ranks_[i]); });
    }
    std::vector<T> all;
    for (std::optional<T>& result : results) all.push_back(std::move(*result));
    return all;
  }

  void begin(std::vector<std::string> set = {}) {
    for (const char* setting :
         {"model.hidden=16", "model.heads=4", "model.key_value_heads=2", "model.head_dim=4",
          "model.layers=1", "model.experts=2", "model.expert_hidden=8", "parallel.pp=1",
          "parallel.vpp=1", "parallel.dp=2", "schedule.order=1f1b", "schedule.microbatches=1",
          "data.micro_batch=4", "data.sequence=20", "rollout.answers=2", "rollout.digits=3",
          "rollout.warm_start_steps=3", "steps=20"})
      set.insert(set.begin(), setting);
    set.push_back("rollout.engines=" + engine_.url());
    const auto config = config::parse_train("", "t.yaml", {.set = set});
    ASSERT_TRUE(config) << config.error().message();
    config_ = *config;
    regroup();
    const auto options = training_options(config_);
    ASSERT_TRUE(options) << options.error().message();
    const auto begun = together<Result<>>([&](Rank& rank) -> Result<> {
      auto training = training::TrainingRank::create(*options, rank.group.get());
      if (!training) return fail(std::move(training).error());
      rank.training = std::move(*training);
      training::adopt_weights(*rank.training, weights_of_seed(1));
      renew(rank);
      return {};
    });
    for (const Result<>& one : begun) ASSERT_TRUE(one) << one.error().message();
  }
  // All ranks in another group.
  void regroup() {
    const auto segment = collective::memory::HostSegment::create({.size = kRolloutRanks});
    ASSERT_TRUE(segment);
    for (std::uint32_t i = 0; i < kRolloutRanks; ++i) {
      std::unique_ptr<collective::ProcessGroup> group = segment->attach(i).value();
      if (ranks_[i].group)
        ASSERT_TRUE(ranks_[i].group->regroup(std::move(group)));
      else
        ranks_[i].group = std::make_unique<collective::RegroupableGroup>(std::move(group));
    }
  }
  // As in a process of its own: nothing of before.
  void renew(Rank& rank) {
    rank.rollouts = StepRollouts::create(
                        config_, *rank.training, *rank.group,
                        [this](const json& event) { events_.push_back(event); },
                        [this] { return stops_.load(); })
                        .value();
  }
  // The weights of all ranks are others from now on.
  void set_weights(std::uint64_t seed) {
    for (Rank& rank : ranks_) training::adopt_weights(*rank.training, weights_of_seed(seed));
  }
  [[nodiscard]] training::ParameterSet weights_of_seed(std::uint64_t seed) const {
    training::ParameterSet weights(moe::all_parameters(training_options(config_)->spec));
    training::initialise(weights, seed, 0.3);
    return weights;
  }

  // What a rank that fails does: the others are told why.
  std::vector<Batches> try_step(std::uint64_t step, std::uint32_t min_epoch = 0) {
    return together<Batches>([&](Rank& rank) {
      Batches batches = rank.rollouts->batches(step, min_epoch);
      if (!batches) rank.group->abort(batches.error());
      return batches;
    });
  }
  // Of all replicas, one after the other.
  std::vector<MicroBatch> batches_of(std::uint64_t step, std::uint32_t min_epoch = 0) {
    std::vector<MicroBatch> all;
    for (Batches& batches : try_step(step, min_epoch)) {
      EXPECT_TRUE(batches) << batches.error().message();
      if (!batches || !*batches) return {};
      all.insert(all.end(), std::make_move_iterator((*batches)->begin()),
                 std::make_move_iterator((*batches)->end()));
    }
    EXPECT_EQ(all.size(), 2U);
    return all;
  }
  [[nodiscard]] std::vector<std::string> prompts_of_step(std::uint64_t step) const {
    std::vector<std::string> prompts;
    const rollout::Task task = task_of(config_).value();
    for (std::uint64_t i = 0; i < kGroupsOfStep; ++i)
      prompts.push_back(task.problem(config_.rollout->seed, step * kGroupsOfStep + i).prompt);
    return prompts;
  }
  // What the first sequence of each group begins with.
  [[nodiscard]] static std::vector<std::string> prompts_in(const std::vector<MicroBatch>& batches) {
    std::vector<std::string> prompts;
    for (const MicroBatch& batch : batches)
      for (std::size_t at = 0; at < batch.tokens.size(); at += 2 * batch.sequence) {
        std::string text(batch.tokens.begin() + static_cast<std::ptrdiff_t>(at),
                         batch.tokens.begin() + static_cast<std::ptrdiff_t>(at + batch.sequence));
        prompts.push_back(text.substr(0, text.find('=') + 1));
      }
    return prompts;
  }
  // Answers with the engine's version at the time.
  void hold_answers() {
    engine_.script([this](const json& question) {
      engine_.hold();
      return answer_by(question, engine_.served());
    });
  }
  void serve(std::uint32_t epoch, std::uint64_t step) {
    engine_.serve({.epoch = epoch, .step = step});
  }

  ScriptedReplica engine_;
  config::TrainConfig config_;
  std::array<Rank, kRolloutRanks> ranks_;
  std::atomic<bool> stops_ = false;
  std::vector<json> events_;  // of rank 0
};

TEST_F(TrainRollouts, EachReplicaGetsItsPartOfRightAnswersFirst) {
  begin();
  const auto given = batches_of(1);
  EXPECT_NE(given.at(0), given.at(1));
  for (const MicroBatch& batch : given) EXPECT_THAT(batch.policy, IsEmpty());
  EXPECT_EQ(batches_of(1), given);
  EXPECT_NE(batches_of(2), given);
  EXPECT_THAT(engine_.questions(), IsEmpty());
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(TrainRollouts, ThenOfWhatEnginesAnswer) {
  begin();
  const auto generated = batches_of(kFirstGenerated);
  EXPECT_EQ(prompts_in(generated), prompts_of_step(kFirstGenerated));
  ASSERT_EQ(events_.size(), 1U);
  EXPECT_EQ(events_[0].at("step"), kFirstGenerated);
  EXPECT_EQ(events_[0].at("answers"), 8);
  EXPECT_EQ(events_[0].at("reward"), 0.5) << "the first of two answers is right";
  EXPECT_EQ(events_[0].at("groups_with_advantage"), 4);
  EXPECT_EQ(events_[0].at("tokens"), 4 * (4 + 2));
}

// After a rank was lost the others and its replacement come back to it.
TEST_F(TrainRollouts, AStepThatIsRunAgainHasTheSameBytes) {
  begin();
  (void)batches_of(kFirstGenerated);
  const auto before = rollout::encode_batches(batches_of(kFirstGenerated + 1));
  const std::size_t asked = engine_.questions().size();
  engine_.script([this](const json& question) {
    json other = question;
    other["prompt"] = json::array({' ', '9', '='});  // another answer than the one before
    return answer_by(other, engine_.served());
  });
  ranks_[1].group->abort({ErrorCode::kPeerLost, "rank 1 is gone"});
  regroup();
  renew(ranks_[1]);
  EXPECT_EQ(rollout::encode_batches(batches_of(kFirstGenerated + 1)), before);
  EXPECT_EQ(events_.size(), 2U) << "it has not been generated again";
  // What has been asked meanwhile is for the next step.
  const auto questions = engine_.questions();
  for (std::size_t i = asked; i < questions.size(); ++i)
    EXPECT_THAT(prompts_of_step(kFirstGenerated + 1), Each(testing::Ne(prompt_of(questions[i]))));
}

// While the engine takes its time rank 0 waits for it, and sees that the group is broken.
TEST_F(TrainRollouts, ABrokenGroupEndsTheWaitForAnswersAndLosesNone) {
  begin();
  hold_answers();
  std::jthread breaks([&] {
    engine_.wait_for_held(kGroupsOfStep);
    ranks_[1].group->abort({ErrorCode::kPeerLost, "rank 1 is gone"});
  });
  for (const Batches& failed : try_step(kFirstGenerated)) {
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(failed.error().message(), HasSubstr("rank 1 is gone"));
  }
  breaks.join();
  engine_.release();
  regroup();
  EXPECT_EQ(prompts_in(batches_of(kFirstGenerated)), prompts_of_step(kFirstGenerated));
  std::size_t asked = 0;
  for (const json& question : engine_.questions())
    for (const std::string& prompt : prompts_of_step(kFirstGenerated))
      asked += static_cast<std::size_t>(prompt_of(question) == prompt);
  EXPECT_EQ(asked, kGroupsOfStep);
}

// The group breaks before anybody has anything, and after rank 0 has it all.
TEST_F(TrainRollouts, AGroupThatIsBrokenFromTheStartLeavesNothingBehind) {
  begin();
  ranks_[0].group->abort({ErrorCode::kDeadline, "too late"});
  for (const Batches& failed : try_step(kFirstGenerated)) EXPECT_FALSE(failed);
  EXPECT_THAT(engine_.questions(), IsEmpty());
  regroup();
  EXPECT_EQ(prompts_in(batches_of(kFirstGenerated)), prompts_of_step(kFirstGenerated));
}

TEST_F(TrainRollouts, AnEngineThatDoesNotAnswerEndsTheStepWithItsReason) {
  begin({"rollout.wait_limit=1ms"});
  engine_.script([](const json&) { return rollout::test::refused_by(500, "a defect"); });
  std::vector<Batches> failed = try_step(kFirstGenerated);
  ASSERT_FALSE(failed[0]);
  EXPECT_EQ(failed[0].error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(failed[0].error().message(),
              AllOf(HasSubstr("step 4: rollouts"), HasSubstr("0 of 4 groups")));
  EXPECT_FALSE(failed[1]);
  // It can be asked for once more.
  engine_.script([this](const json& question) { return answer_by(question, engine_.served()); });
  regroup();
  Batches again;
  do {
    std::vector<Batches> all = try_step(kFirstGenerated);
    if (!all[0]) regroup();
    again = std::move(all[0]);
  } while (!again);
  EXPECT_TRUE(*again);
}

TEST_F(TrainRollouts, ARunThatIsToEndGetsNothing) {
  begin();
  hold_answers();
  std::jthread stops([&] {
    engine_.wait_for_held(kGroupsOfStep);
    stops_ = true;
  });
  for (const Batches& batches : try_step(kFirstGenerated)) {
    ASSERT_TRUE(batches) << batches.error().message();
    EXPECT_FALSE(*batches);
  }
  EXPECT_THAT(events_, IsEmpty());
}

// A checkpoint that all fall back to is of an earlier step.
TEST_F(TrainRollouts, ARunThatGoesBackGeneratesAnew) {
  begin();
  for (std::uint64_t step = kFirstGenerated; step <= 6; ++step) (void)batches_of(step);
  EXPECT_EQ(prompts_in(batches_of(5)), prompts_of_step(5));
  EXPECT_EQ(prompts_in(batches_of(6)), prompts_of_step(6));
  EXPECT_THAT(batches_of(2).at(0).policy, IsEmpty());
  EXPECT_EQ(prompts_in(batches_of(4)), prompts_of_step(4));
}

// Of the divergence from the weights with which the run began to generate.
TEST_F(TrainRollouts, TheReferenceIsOfTheFirstStepThatGenerates) {
  begin({"rollout.kl=0.25"});
  const auto first = batches_of(kFirstGenerated);
  set_weights(2);
  const auto second = batches_of(kFirstGenerated + 1);
  const auto options = *training_options(config_);
  const auto weights = weights_of_seed(1);
  for (std::vector<MicroBatch> batches : {first, second}) {
    EXPECT_EQ(batches.at(0).policy_loss.kl, 0.25F);
    const std::vector<MicroBatch> made = batches;
    rollout::refer_to(options.spec, weights, options.sequence, batches);
    EXPECT_EQ(made, batches);
  }
}

class NewRankZero : public TrainRollouts {
 protected:
  // Two steps that were generated; then rank 0 is another process, and its epoch the next.
  void begin_and_lose(std::vector<std::string> set) {
    for (const char* setting : {"publish.every=1", "publish.run_dir=/tmp/unused"})
      set.emplace_back(setting);
    begin(std::move(set));
    for (std::uint64_t step = kFirstGenerated; step <= kFirstGenerated + 1; ++step) {
      set_weights(step);
      serve(1, step - 1);
      (void)batches_of(step, 1);
    }
    ranks_[1].group->abort({ErrorCode::kPeerLost, "rank 0 is gone"});
    regroup();
    renew(ranks_[0]);
  }
};

TEST_F(NewRankZero, RunsTheStepAgainWithTheEpochThatItHas) {
  begin_and_lose({});
  const std::size_t asked = engine_.questions().size();
  // The same weights, which the engines still have under their former name.
  std::jthread publishes([&] {
    engine_.wait_for_looks(engine_.looks() + 3);
    EXPECT_EQ(engine_.questions().size(), asked);
    serve(2, kFirstGenerated);
  });
  EXPECT_EQ(prompts_in(batches_of(kFirstGenerated + 1, 2)), prompts_of_step(kFirstGenerated + 1));
  const json& event = events_.back();
  EXPECT_EQ(event.at("step"), kFirstGenerated + 1);
  EXPECT_EQ(event.at("staleness_most"), 0);
  EXPECT_EQ(event.at("dropped_groups"), 0);
  EXPECT_EQ(event.at("mismatch_tokens"), event.at("tokens"));
}

// Answers of steps before it: it has never had their weights.
TEST_F(NewRankZero, ComparesOnlyTokensOfWeightsThatItHas) {
  begin_and_lose({"rollout.max_staleness=2"});
  serve(2, kFirstGenerated - 1);
  (void)batches_of(kFirstGenerated + 1, 2);
  EXPECT_EQ(events_.back().at("staleness_most"), 1);
  EXPECT_EQ(events_.back().at("mismatch_tokens"), 0);
  EXPECT_EQ(events_.back().at("tokens"), 4 * (4 + 2));
}

TEST_F(NewRankZero, StaysNearTheWeightsThatItBeginsWithAndSaysSo) {
  begin_and_lose({"rollout.kl=0.25"});
  serve(2, kFirstGenerated);
  wsync::test::capture_log();
  auto batches = batches_of(kFirstGenerated + 1, 2);
  const std::string log = wsync::test::captured_log();
  EXPECT_THAT(log, HasSubstr("rollout.kl: the weights that this run began to generate with (step "
                             "3) no longer exist; from step 5 on"));
  const std::vector<MicroBatch> made = batches;
  const auto options = *training_options(config_);
  rollout::refer_to(options.spec, weights_of_seed(kFirstGenerated + 1), options.sequence, batches);
  EXPECT_EQ(made, batches);
}

// It goes back to where the run has begun to generate, and has those weights again.
TEST_F(NewRankZero, TakesTheFirstReferenceWhereItComesBackToIt) {
  begin_and_lose({"rollout.kl=0.25"});
  serve(2, kFirstGenerated);
  (void)batches_of(kFirstGenerated + 1, 2);
  set_weights(kFirstGenerated);
  wsync::test::capture_log();
  auto batches = batches_of(kFirstGenerated, 2);
  EXPECT_EQ(wsync::test::captured_log(), "");
  const std::vector<MicroBatch> made = batches;
  const auto options = *training_options(config_);
  rollout::refer_to(options.spec, weights_of_seed(kFirstGenerated), options.sequence, batches);
  EXPECT_EQ(made, batches);
}

TEST(RolloutSetup, AVocabularyOfMoreThanBytesIsRefused) {
  const auto config = config::parse_train(
      "", "t.yaml", {.set = {"rollout.engines=http://a:1", "model.vocabulary=300"}});
  ASSERT_TRUE(config) << config.error().message();
  const auto begun = begin_run(*config, training_options(*config).value());
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(begun.error().message(),
              HasSubstr("model.vocabulary: the model has a vocabulary of 300 tokens"));
}

}  // namespace
}  // namespace wsync::cli
