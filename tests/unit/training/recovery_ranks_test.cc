// Ranks that die at every point of a step, and inside recovery: all others go on from one step, and
// weights and the optimizer's state end as those of a run that nothing disturbs.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "tests/unit/training/recovery_fleet.h"
#include "trainer_side/training/reference_trainer.h"

namespace wsync::training {
namespace {

// The step in which ranks die.
constexpr std::uint64_t kDeadly = 2;

// Sanitizers take up to ten times as long: they see every third exchange of a rank, others of the
// next one.
#ifdef WSYNC_SANITIZED
constexpr int kEvery = 3;
#else
constexpr int kEvery = 1;
#endif
int first_of(std::uint32_t rank) { return static_cast<int>(rank) % kEvery; }

struct RecoveryCase {
  ParallelSizes sizes;
  bool tied = false;
};
std::string recovery_case_name(const RecoveryCase& one) {
  return fmt::format("pp{}_dp{}_ep{}{}", one.sizes.pp, one.sizes.dp, one.sizes.ep,
                     one.tied ? "_tied" : "");
}
TrainingOptions recovery_options(const RecoveryCase& one) {
  TrainingOptions options = small_options(one.sizes, 2);
  options.spec.tied_embeddings = one.tied;
  options.second_holders = true;
  return options;
}

// A run in one process, with plain loops.
struct Undisturbed {
  explicit Undisturbed(const TrainingOptions& options)
      : trainer(options.spec, options.optimizer, initial(moe::all_parameters(options.spec))),
        checkpoint{.spec = options.spec,
                   .facts = {},
                   .weights = trainer.weights(),
                   .mean = trainer.mean(),
                   .variance = trainer.variance()} {
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      std::vector<std::vector<MicroBatch>> replicas;
      for (std::uint32_t replica = 0; replica < options.sizes.dp; ++replica)
        replicas.push_back(batches_of(options, step, replica));
      steps.push_back(trainer.run_step(step, replicas).value());
      if (step + 1 != kDeadly) continue;
      checkpoint.facts.step = step;
      checkpoint.weights = trainer.weights();
      checkpoint.mean = trainer.mean();
      checkpoint.variance = trainer.variance();
    }
  }
  ReferenceTrainer trainer;
  std::vector<StepResult> steps;
  RunState checkpoint;  // of the step before the deadly one
};
Undisturbed& undisturbed(const RecoveryCase& one) {
  static std::map<std::string, std::unique_ptr<Undisturbed>> all;
  auto& run = all[recovery_case_name(one)];
  if (!run) run = std::make_unique<Undisturbed>(recovery_options(one));
  return *run;
}

bool has_state_of(const Shard& shard, const HeldPart& held, const ParameterSet& expected,
                  const std::vector<float>& values) {
  ParameterSet array(shard.weights->parameters());
  for (const moe::Parameter& parameter : array.parameters())
    std::ranges::copy(expected.values(parameter.name), array.values(parameter.name).begin());
  return same_bits(values, array.all().subspan(held.begin, held.end - held.begin));
}

void expect_undisturbed(const Fleet& fleet, Undisturbed& expected) {
  for (std::size_t number = 0; number < fleet.outcomes().size(); ++number) {
    const Fleet::Outcome& outcome = fleet.outcomes()[number];
    ASSERT_EQ(outcome.error, "") << "rank " << number;
    for (const auto& [step, result] : outcome.steps) {
      EXPECT_EQ(result.loss, expected.steps[step - 1].loss);
      EXPECT_EQ(result.gradient_norm, expected.steps[step - 1].gradient_norm);
    }
    EXPECT_EQ(outcome.rank->tag(), (Tag{kSteps + 1, Phase::kForward}));
    const ParameterSet& weights = expected.trainer.weights();
    for (const ParameterSet* set :
         {&outcome.rank->weights().dense, &outcome.rank->weights().experts})
      for (const moe::Parameter& parameter : set->parameters())
        EXPECT_TRUE(same_bits(set->values(parameter.name), weights.values(parameter.name)))
            << "rank " << number << ": " << parameter.name << " is not what it is undisturbed";
    if (const auto& head = outcome.rank->weights().tied_head) {
      EXPECT_TRUE(same_bits(head->all(), weights.values(moe::kEmbedding))) << "rank " << number;
    }
    for (Shard& shard : outcome.rank->update().shards()) {
      EXPECT_EQ(shard.second.has_value(), shard.team.size() > 1);
      for (const HeldPart* held : {&shard.own, shard.second ? &*shard.second : nullptr}) {
        if (held == nullptr) continue;
        EXPECT_TRUE(has_state_of(shard, *held, expected.trainer.mean(), held->mean) &&
                    has_state_of(shard, *held, expected.trainer.variance(), held->variance))
            << "rank " << number << "'s state of elements " << held->begin << " to " << held->end
            << " is not what it is undisturbed";
      }
    }
  }
}

// The last step whose barrier is behind a rank with this tag.
std::uint64_t behind(const Tag& tag) {
  return tag.phase == Phase::kUpdate ? tag.step : tag.step - 1;
}

// The step that every rank went on from in a generation; they agree on it, and on what is decided
// by how far the furthest of those that were left had come.
std::uint64_t resumed_at(const Fleet& fleet, std::uint32_t generation) {
  std::uint64_t step = 0;
  std::uint64_t furthest = 0;
  std::size_t ranks = 0;
  for (const Fleet::Resumed& resumed : fleet.resumed()) {
    if (resumed.generation != generation) continue;
    EXPECT_EQ(resumed.error, "") << "rank " << resumed.rank;
    if (ranks++ == 0) step = resumed.step;
    EXPECT_EQ(resumed.step, step) << "rank " << resumed.rank << " goes on from another step";
    if (resumed.tag.phase != Phase::kEmpty) furthest = std::max(furthest, behind(resumed.tag));
  }
  EXPECT_EQ(ranks, fleet.outcomes().size());
  EXPECT_EQ(step, furthest + 1);
  return step;
}

class Recovering : public testing::TestWithParam<RecoveryCase> {
 protected:
  [[nodiscard]] std::unique_ptr<Fleet> run(Fleet::Faults faults) const {
    faults.checkpoint = falls_back_ ? &undisturbed(GetParam()).checkpoint : nullptr;
    auto fleet = std::make_unique<Fleet>(recovery_options(GetParam()), std::move(faults));
    fleet->run();
    return fleet;
  }
  // One death, after which all go on from step `expected`.
  void expect_step(const std::string& what, const Death& death, std::uint64_t expected) const {
    SCOPED_TRACE(fmt::format("rank {} dies {}", death.rank, what));
    const auto fleet = run({.deaths = {death}});
    ASSERT_EQ(fleet->died(), 1U);
    ASSERT_EQ(fleet->generations(), 1U);
    EXPECT_EQ(resumed_at(*fleet, 1), expected) << "the phase of the loss says another step";
    expect_undisturbed(*fleet, undisturbed(GetParam()));
  }
  [[nodiscard]] std::uint32_t ranks() const { return GetParam().sizes.ranks(); }

  bool falls_back_ = false;
};

TEST_P(Recovering, ALossBeforeTheBarrierCostsTheStepAndALaterOneNothing) {
  const auto calm = run({});
  ASSERT_EQ(calm->generations(), 0U);
  expect_undisturbed(*calm, undisturbed(GetParam()));
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    const int barrier = calm->counts(rank).until_barrier - 1;
    ASSERT_GE(barrier, 2);
    ASSERT_GT(calm->counts(rank).all, barrier + 1);
    using At = Death::At;
    const auto dies = [&](At at, const Tag& tag, int exchanges = 0) {
      return Death{.at = at, .rank = rank, .tag = tag, .exchanges = exchanges, .reaches = {}};
    };
    const Tag update{kDeadly, Phase::kUpdate};
    expect_step("in forward", dies(At::kTag, {kDeadly, Phase::kForward}), kDeadly);
    expect_step("in backward", dies(At::kTag, {kDeadly, Phase::kBackward}), kDeadly);
    expect_step("before it confirms the barrier", dies(At::kUpdate, update, barrier), kDeadly);
    expect_step("after the last confirmation", dies(At::kTag, update), kDeadly + 1);
    expect_step("in the optimizer's step", dies(At::kUpdate, update, barrier + 1), kDeadly + 1);
    expect_step("after the commit", dies(At::kTag, {kDeadly + 1, Phase::kForward}), kDeadly + 1);
  }
}

// Every exchange of the update, with every way in which its messages are torn off.
TEST_P(Recovering, AtEveryExchangeOfTheUpdateAllAgree) {
  const auto calm = run({});
  std::map<std::uint64_t, int> times;
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    std::vector<std::vector<std::uint32_t>> reached{{}, {}};
    for (std::uint32_t other = 0; other < ranks(); ++other)
      if (other != rank) reached[1].push_back(other);
    if (ranks() > 2) reached.push_back({(rank + 1) % ranks()});
    for (int exchange = first_of(rank); exchange < calm->counts(rank).all; exchange += kEvery)
      for (const auto& reaches : reached) {
        SCOPED_TRACE(fmt::format("rank {} dies in exchange {}, in which it reaches [{}]", rank,
                                 exchange, fmt::join(reaches, ", ")));
        const auto fleet = run({.deaths = {{.at = Death::At::kUpdate,
                                            .rank = rank,
                                            .tag = {kDeadly, Phase::kUpdate},
                                            .exchanges = exchange,
                                            .reaches = reaches}}});
        ASSERT_EQ(fleet->generations(), 1U);
        ++times[resumed_at(*fleet, 1)];
        expect_undisturbed(*fleet, undisturbed(GetParam()));
      }
  }
  EXPECT_EQ(times.size(), 2U);
  EXPECT_GT(times[kDeadly], 0);
  EXPECT_GT(times[kDeadly + 1], 0);
}

// The one that dies has confirmed to one only, which passes the barrier. The others cannot.
class RecoveringOfFour : public Recovering {};
TEST_P(RecoveringOfFour, WhoHasNotPassedTheBarrierCommitsWithThoseThatHave) {
  const auto calm = run({});
  for (std::uint32_t rank = 0; rank < ranks(); ++rank)
    for (std::uint32_t reached = 0; reached < ranks(); ++reached) {
      if (reached == rank) continue;
      SCOPED_TRACE(fmt::format("rank {} dies, rank {} alone has its sums", rank, reached));
      const auto fleet = run({.deaths = {{.at = Death::At::kUpdate,
                                          .rank = rank,
                                          .tag = {kDeadly, Phase::kUpdate},
                                          .exchanges = calm->counts(rank).until_barrier - 1,
                                          .reaches = {reached},
                                          .until = Tag{kDeadly, Phase::kUpdate}}}});
      for (const Fleet::Resumed& resumed : fleet->resumed()) {
        const Phase expected = resumed.rank == reached ? Phase::kUpdate
                               : resumed.rank == rank  ? Phase::kEmpty
                                                       : Phase::kBackward;
        EXPECT_EQ(resumed.tag.phase, expected) << "rank " << resumed.rank;
      }
      EXPECT_EQ(resumed_at(*fleet, 1), kDeadly + 1);
      expect_undisturbed(*fleet, undisturbed(GetParam()));
    }
}

// A group can break without a loss: then nobody is replaced.
TEST_P(Recovering, WithoutALossAllGoOn) {
  for (const Tag& tag : {Tag{kDeadly, Phase::kForward}, Tag{kDeadly, Phase::kBackward},
                         Tag{kDeadly, Phase::kUpdate}}) {
    const auto fleet = run({.deaths = {{.at = Death::At::kTag,
                                        .rank = ranks() - 1,
                                        .tag = tag,
                                        .reaches = {},
                                        .only_breaks = true}}});
    ASSERT_EQ(fleet->died(), 0U);
    ASSERT_EQ(fleet->generations(), 1U);
    EXPECT_EQ(resumed_at(*fleet, 1), tag.phase == Phase::kUpdate ? kDeadly + 1 : kDeadly);
    expect_undisturbed(*fleet, undisturbed(GetParam()));
  }
}

bool has_a_holder(const ParallelSizes& sizes, const std::vector<std::uint32_t>& lost) {
  std::vector<RankState> ranks(sizes.ranks(), {{kDeadly, Phase::kForward}, false});
  for (const std::uint32_t rank : lost) ranks[rank] = {};
  return decide(sizes, ranks).has_value();
}

TEST_P(Recovering, TwoLossesAtOnceAreRecoveredFromWhereHoldersAreLeft) {
  falls_back_ = true;
  int recovered = 0;
  int fell_back = 0;
  for (const Tag& tag : {Tag{kDeadly, Phase::kForward}, Tag{kDeadly + 1, Phase::kForward}})
    for (std::uint32_t a = 0; a < ranks(); ++a)
      for (std::uint32_t b = a + 1; b < ranks(); ++b) {
        if (ranks() == 2) continue;
        SCOPED_TRACE(fmt::format("ranks {} and {} die at {}", a, b, to_string(tag)));
        const Death death{.rank = a, .tag = tag, .reaches = {}, .together = true};
        Death other = death;
        other.rank = b;
        const auto fleet = run({.deaths = {death, other}});
        ASSERT_EQ(fleet->died(), 2U);
        ASSERT_EQ(fleet->generations(), 1U);
        if (has_a_holder(GetParam().sizes, {a, b})) {
          ++recovered;
          EXPECT_EQ(resumed_at(*fleet, 1), tag.step);
        } else {
          ++fell_back;
          for (const Fleet::Resumed& resumed : fleet->resumed()) EXPECT_TRUE(resumed.fell_back);
        }
        expect_undisturbed(*fleet, undisturbed(GetParam()));
      }
  const auto& [sizes, tied] = GetParam();
  if (sizes.pp > 1 || (sizes.dp > 2 && sizes.ep == 1)) {
    EXPECT_GT(recovered, 0);
  }
  if (ranks() > 2) {
    EXPECT_GT(fell_back, 0);
  }
}

// The first loss is recovered from; meanwhile another rank is lost, or the replacement, at every
// exchange. What ranks have by then they keep; where nobody is left to give it, all fall back.
TEST_P(Recovering, ALossInsideRecoveryIsRecoveredFromAsWell) {
  falls_back_ = true;
  int recovered = 0;
  for (const Tag& tag : {Tag{kDeadly, Phase::kBackward}, Tag{kDeadly, Phase::kUpdate}})
    for (std::uint32_t first = 0; first < ranks(); first += ranks() - 1) {
      const Death death{.rank = first, .tag = tag, .reaches = {}};
      const auto once = run({.deaths = {death}});
      for (const Fleet::Resumed& of_rank : once->resumed())
        for (int exchange = first_of(of_rank.rank); exchange <= of_rank.exchanges;
             exchange += kEvery) {
          SCOPED_TRACE(fmt::format("rank {} dies at {}, then rank {} in exchange {} of recovery",
                                   first, to_string(tag), of_rank.rank, exchange));
          const auto fleet = run({.deaths = {death,
                                             {.at = Death::At::kRecovery,
                                              .rank = of_rank.rank,
                                              .exchanges = exchange,
                                              .reaches = {(of_rank.rank + 1) % ranks()},
                                              .generation = 1}}});
          ASSERT_EQ(fleet->died(), 2U);
          ASSERT_EQ(fleet->generations(), 2U);
          const bool fell_back = std::ranges::any_of(
              fleet->resumed(), [](const Fleet::Resumed& one) { return one.fell_back; });
          recovered += fell_back ? 0 : 1;
          if (of_rank.rank == first || has_a_holder(GetParam().sizes, {first, of_rank.rank})) {
            EXPECT_FALSE(fell_back);
          }
          expect_undisturbed(*fleet, undisturbed(GetParam()));
        }
    }
  EXPECT_GT(recovered, 0);
}

// Messages of recovery that arrive as others than they were sent: what they bring is not taken.
TEST_P(Recovering, DamagedBytesAreNotTaken) {
  // Of the embeddings, with their state, to rank 0. Where rank 0 was gone before another rank had
  // its last weights, that rank is given some by the same rank, and they may be the damaged ones.
  constexpr std::uint32_t kGiver = 1;
  const auto expect_refused = [&](std::size_t at_least, std::size_t at_most, const char* what) {
    const Death death{.rank = 0, .tag = {kDeadly, Phase::kForward}, .reaches = {}};
    const auto fleet =
        run({.deaths = {death},
             .damage = Damage{.rank = kGiver, .at_least = at_least, .at_most = at_most}});
    ASSERT_EQ(fleet->generations(), 2U) << what;
    const auto refused = std::ranges::count_if(fleet->resumed(), [&](const Fleet::Resumed& one) {
      return one.generation == 1 &&
             one.error.starts_with(fmt::format(
                 "rank {} received weights and state from rank {}: {}", one.rank, kGiver, what));
    });
    EXPECT_EQ(refused, 1) << what;
    EXPECT_EQ(resumed_at(*fleet, 2), kDeadly);
    expect_undisturbed(*fleet, undisturbed(GetParam()));
  };
  constexpr std::size_t kNote =
      32;  // of the digests of the list of tensors, and of all their bytes
  expect_refused(kNote, kNote, "the set of all tensors");
  expect_refused(1000, 1U << 20U, "bucket 0 of 1");
}

INSTANTIATE_TEST_SUITE_P(Layouts, Recovering,
                         testing::Values(RecoveryCase{{.pp = 1, .vpp = 1, .ep = 1, .dp = 2}},
                                         RecoveryCase{{.pp = 1, .vpp = 1, .ep = 1, .dp = 2}, true},
                                         RecoveryCase{{.pp = 2, .vpp = 1, .ep = 1, .dp = 2}},
                                         RecoveryCase{{.pp = 2, .vpp = 1, .ep = 1, .dp = 2}, true},
                                         RecoveryCase{{.pp = 1, .vpp = 1, .ep = 1, .dp = 4}},
                                         RecoveryCase{{.pp = 1, .vpp = 1, .ep = 2, .dp = 4}}),
                         [](const auto& one) { return recovery_case_name(one.param); });
INSTANTIATE_TEST_SUITE_P(Layouts, RecoveringOfFour,
                         testing::Values(RecoveryCase{{.pp = 2, .vpp = 1, .ep = 1, .dp = 2}},
                                         RecoveryCase{{.pp = 2, .vpp = 1, .ep = 1, .dp = 2}, true},
                                         RecoveryCase{{.pp = 1, .vpp = 1, .ep = 1, .dp = 4}},
                                         RecoveryCase{{.pp = 1, .vpp = 1, .ep = 2, .dp = 4}}),
                         [](const auto& one) { return recovery_case_name(one.param); });

// Shards of several buckets, both of weights and of state.
TEST(RecoveringRanks, TakeMoreThanOneBucket) {
  TrainingOptions options = recovery_options({.sizes = {.dp = 2}});
  options.spec.vocabulary = 20'000;
  options.sequences = 1;
  const Death death{.rank = 1, .tag = {kDeadly, Phase::kUpdate}, .reaches = {}};
  Fleet fleet(options, {.deaths = {death}, .bucket_bytes = limits::kBucketBytesMin});
  fleet.run();
  ASSERT_EQ(fleet.generations(), 1U);
  EXPECT_EQ(resumed_at(fleet, 1), kDeadly + 1);
  // Options, sign and note; then buckets of a MiB, of two matrices of 20,000 rows of 16 and their
  // state.
  constexpr int kBuckets = 2 * 3 * 20'000 * 16 * 4 / (1 << 20) + 1;
  for (const Fleet::Resumed& resumed : fleet.resumed()) EXPECT_GE(resumed.exchanges, 3 + kBuckets);
  Undisturbed expected(options);
  expect_undisturbed(fleet, expected);
}

TEST(RecoveringRanks, TellTheirPhases) {
  const TrainingOptions options =
      recovery_options({.sizes = {.pp = 2, .vpp = 1, .ep = 1, .dp = 2}});
  run_as_threads(4, [&](std::uint32_t, auto group) {
    auto rank = TrainingRank::create(options, group.get());
    ASSERT_TRUE(rank.has_value()) << rank.error().message();
    std::vector<Tag> tags;
    (*rank)->on_phase([&](const Tag& tag) { tags.push_back(tag); });
    EXPECT_EQ((*rank)->tag(), Tag{});
    ASSERT_TRUE(set_weights(**rank).has_value());
    (*rank)->begin_at(1);
    for (const std::uint64_t step : {1U, 2U})
      ASSERT_TRUE(
          (*rank)->run_step(step, batches_of(options, step, (*rank)->place().replica)).has_value());
    const std::vector<Tag> expected{
        {1, Phase::kForward},  {1, Phase::kBackward}, {1, Phase::kUpdate}, {2, Phase::kForward},
        {2, Phase::kBackward}, {2, Phase::kUpdate},   {3, Phase::kForward}};
    EXPECT_EQ(tags, expected);
    (*rank)->set_empty();
    EXPECT_EQ(tags.back(), Tag{});
    EXPECT_EQ((*rank)->update().progress().passed, 0U);
  });
}

// As where nothing was saved, and a step had begun to change weights and state.
TEST(RecoveringRanks, ThatWereSetEmptyBeginAsAnyOtherRun) {
  const TrainingOptions options = recovery_options({.sizes = {.dp = 2}});
  run_as_threads(2, [&](std::uint32_t, auto group) {
    auto rank = TrainingRank::create(options, group.get());
    ASSERT_TRUE(rank.has_value()) << rank.error().message();
    std::vector<StepResult> results;
    std::vector<std::vector<float>> weights;
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(set_weights(**rank).has_value());
      (*rank)->begin_at(1);
      for (const std::uint64_t step : {1U, 2U}) {
        const auto done =
            (*rank)->run_step(step, batches_of(options, step, (*rank)->place().replica));
        ASSERT_TRUE(done.has_value()) << done.error().message();
        results.push_back(done->result);
      }
      const auto all = (*rank)->weights().dense.all();
      weights.emplace_back(all.begin(), all.end());
      (*rank)->set_empty();
    }
    EXPECT_EQ(results[0].loss, results[2].loss);
    EXPECT_EQ(results[1].loss, results[3].loss);
    EXPECT_TRUE(same_bits(weights[0], weights[1])) << "the optimizer's state is zero again";
  });
}

TEST(RecoveringRanks, NeedSecondHolders) {
  TrainingOptions options = recovery_options({.sizes = {.dp = 2}});
  options.second_holders = false;
  run_as_threads(2, [&](std::uint32_t, auto group) {
    auto rank = TrainingRank::create(options, group.get());
    ASSERT_TRUE(rank.has_value()) << rank.error().message();
    for (const Shard& shard : (*rank)->update().shards()) EXPECT_FALSE(shard.second.has_value());
    const auto recovered = recover(**rank, *group);
    ASSERT_FALSE(recovered.has_value());
    EXPECT_EQ(recovered.error().code(), ErrorCode::kInvalidInput);
    EXPECT_TRUE(group->health().has_value());
  });
}

TEST(RecoveringRanks, DoNotEndAStepWhoseGradientsTheyDoNotHave) {
  const TrainingOptions options = recovery_options({.sizes = {}});
  auto rank = TrainingRank::create(options, nullptr);
  ASSERT_TRUE(rank.has_value());
  const auto finished = (*rank)->update().finish(4, {});
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().code(), ErrorCode::kInternal);
  EXPECT_EQ(finished.error().message(),
            "rank 0 cannot end step 4: it has the reduced gradients of step 0");
}

}  // namespace
}  // namespace wsync::training
