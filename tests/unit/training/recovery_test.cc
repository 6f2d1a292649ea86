// What ranks decide after a loss, for every layout, state and set of lost ranks: followed by ranks
// that are only numbers of steps, it leaves no two of them at different steps.
#include "trainer_side/training/recovery.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "shared/base/format.h"

namespace wsync::training {
namespace {

constexpr std::uint64_t kStep = 5;
// Of states, for each layout and set of lost ranks.
#ifdef WSYNC_SANITIZED
constexpr int kDraws = 40;
#else
constexpr int kDraws = 200;
#endif
const RankState kLost{};

const std::vector<RankState>& all_states() {
  static const std::vector<RankState> states{
      {{kStep, Phase::kForward}, false},     {{kStep, Phase::kBackward}, false},
      {{kStep, Phase::kBackward}, true},     {{kStep, Phase::kUpdate}, true},
      {{kStep + 1, Phase::kForward}, false}, {{kStep + 1, Phase::kForward}, true},
      {{kStep + 1, Phase::kBackward}, true}, {{kStep + 1, Phase::kUpdate}, true}};
  return states;
}

std::vector<ParallelSizes> all_sizes() {
  std::vector<ParallelSizes> all;
  for (std::uint32_t pp = 1; pp <= 3; ++pp)
    for (std::uint32_t dp = 1; dp <= 4; ++dp)
      for (std::uint32_t ep = 1; ep <= dp; ++ep)
        if (dp % ep == 0) all.push_back({.pp = pp, .vpp = 1, .ep = ep, .dp = dp});
  return all;
}

// Sets of at most two ranks.
std::vector<std::vector<std::uint32_t>> losses_of(std::uint32_t ranks) {
  std::vector<std::vector<std::uint32_t>> all{{}};
  for (std::uint32_t a = 0; a < ranks; ++a) {
    all.push_back({a});
    for (std::uint32_t b = a + 1; b < ranks; ++b) all.push_back({a, b});
  }
  return all;
}

bool has_passed(const RankState& rank, std::uint64_t step) {
  return rank.tag.step > step || (rank.tag.step == step && rank.tag.phase == Phase::kUpdate);
}
bool is_lost(const RankState& rank) { return rank.tag.phase == Phase::kEmpty; }

// The step that ranks in these states can all have come to: some have passed its barrier and none
// the next one's; those that have not were in it, and nobody passes it before.
std::optional<std::uint64_t> step_of(const std::vector<RankState>& ranks) {
  for (const std::uint64_t step : {kStep - 1, kStep, kStep + 1}) {
    bool some = false;
    bool possible = true;
    for (const RankState& rank : ranks) {
      if (is_lost(rank)) continue;
      const bool passed = has_passed(rank, step);
      some |= passed;
      possible &= !has_passed(rank, step + 1);
      possible &= passed || (rank.tag == Tag{step, Phase::kBackward} && rank.has_gradients);
    }
    if (some && possible) return step;
  }
  return {};
}

// Where members stand in their teams, by the words of the design: the owner of a shard, and the
// next one of those that have the same parameters.
struct Member {
  std::vector<std::uint32_t> team;
  std::uint32_t index = 0;
};
Member member_of(const ParallelSizes& sizes, std::uint32_t rank, std::size_t array) {
  Member member;
  const std::uint32_t first = rank / sizes.dp * sizes.dp;
  for (std::uint32_t other = first; other < first + sizes.dp; ++other) {
    if (array == 1 && other % sizes.dp % sizes.ep != rank % sizes.dp % sizes.ep) continue;
    if (other == rank) member.index = static_cast<std::uint32_t>(member.team.size());
    member.team.push_back(other);
  }
  return member;
}

bool has_a_shard_without_holder(const ParallelSizes& sizes, const std::vector<RankState>& ranks) {
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
    for (std::size_t array = 0; array < kArrays; ++array) {
      const Member member = member_of(sizes, rank, array);
      const std::uint32_t second = member.team[(member.index + 1) % member.team.size()];
      if (is_lost(ranks[rank]) && is_lost(ranks[second])) return true;
    }
  return false;
}

// A rank whose values are the numbers of the steps that they are of.
struct Held {
  static constexpr std::uint64_t kNothing = 0;
  static constexpr std::uint64_t kAnything = 99;
  std::vector<std::uint64_t> weights;  // of each member's shard
  std::vector<std::uint64_t> state;    // of those that it holds
};
using HeldOfRank = std::array<Held, kArrays>;

bool holds(const Member& member, std::uint32_t shard) {
  const auto members = static_cast<std::uint32_t>(member.team.size());
  return shard == member.index || (shard + 1) % members == member.index;
}

HeldOfRank memory_of(const ParallelSizes& sizes, std::uint32_t rank, const RankState& state) {
  HeldOfRank memory;
  const bool past = state.tag.phase == Phase::kUpdate;
  for (std::size_t array = 0; array < kArrays; ++array) {
    const Member member = member_of(sizes, rank, array);
    for (std::uint32_t shard = 0; shard < member.team.size(); ++shard) {
      const std::uint64_t step = past ? state.tag.step : state.tag.step - 1;
      const bool held = holds(member, shard);
      memory[array].weights.push_back(is_lost(state)  ? Held::kNothing
                                      : past && !held ? Held::kAnything
                                                      : step);
      memory[array].state.push_back(held && !is_lost(state) ? step : Held::kNothing);
    }
  }
  return memory;
}

class Follower {
 public:
  Follower(const ParallelSizes& sizes, const std::vector<RankState>& ranks, const Resume& resume)
      : sizes_(sizes), ranks_(ranks), resume_(resume) {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
      memory_.push_back(memory_of(sizes, rank, ranks[rank]));
  }

  // Nothing, or what is wrong.
  std::string follow() {
    for (const std::uint32_t rank : resume_.commits) {
      if (is_lost(ranks_[rank]) || !ranks_[rank].has_gradients ||
          ranks_[rank].tag.step != resume_.step - 1)
        return fmt::format("rank {} cannot commit", rank);
      for (std::size_t array = 0; array < kArrays; ++array) {
        const Member member = member_of(sizes_, rank, array);
        for (std::uint32_t shard = 0; shard < member.team.size(); ++shard)
          if (holds(member, shard))
            memory_[rank][array].weights[shard] = memory_[rank][array].state[shard] =
                resume_.step - 1;
      }
    }
    for (const Transfer& transfer : resume_.transfers)
      if (const std::string wrong = carry(transfer); !wrong.empty()) return wrong;
    return compare();
  }

 private:
  std::string carry(const Transfer& transfer) {
    const auto array = static_cast<std::size_t>(transfer.array);
    const Member from = member_of(sizes_, transfer.from, array);
    const Member to = member_of(sizes_, transfer.to, array);
    if (transfer.from == transfer.to || from.team != to.team) return "from outside of the team";
    if (is_lost(ranks_[transfer.from])) return "from a rank that is lost";
    if (!holds(from, transfer.member)) return "from a rank that does not hold the shard";
    if (!is_lost(ranks_[transfer.to]) && (transfer.with_state || holds(to, transfer.member)))
      return "what a rank holds itself is written over";
    Held& target = memory_[transfer.to][array];
    const Held& source = memory_[transfer.from][array];
    target.weights[transfer.member] = source.weights[transfer.member];
    if (transfer.with_state) target.state[transfer.member] = source.state[transfer.member];
    return "";
  }

  [[nodiscard]] std::string compare() const {
    const std::uint64_t step = resume_.step - 1;
    for (std::uint32_t rank = 0; rank < memory_.size(); ++rank)
      for (std::size_t array = 0; array < kArrays; ++array) {
        const Member member = member_of(sizes_, rank, array);
        for (std::uint32_t shard = 0; shard < member.team.size(); ++shard) {
          const Held& held = memory_[rank][array];
          if (held.weights[shard] != step || (holds(member, shard) && held.state[shard] != step))
            return fmt::format(
                "a mixture: rank {} has shard {} of array {} of step {} and its "
                "state of step {}, expected {}",
                rank, shard, array, held.weights[shard], held.state[shard], step);
        }
      }
    return "";
  }

  const ParallelSizes& sizes_;
  const std::vector<RankState>& ranks_;
  const Resume& resume_;
  std::vector<HeldOfRank> memory_;
};

struct Seen {
  int committed = 0;
  int run_again = 0;
  int fell_back = 0;
  int impossible = 0;
};

std::string in_words(const ParallelSizes& sizes, const std::vector<RankState>& ranks) {
  std::string text = fmt::format("pp {} dp {} ep {}:", sizes.pp, sizes.dp, sizes.ep);
  for (const RankState& rank : ranks)
    text += fmt::format(" [{}{}]", to_string(rank.tag), rank.has_gradients ? " +" : "");
  return text;
}

void check(const ParallelSizes& sizes, const std::vector<RankState>& ranks, Seen& seen) {
  const auto decided = decide(sizes, ranks);
  const bool anybody =
      std::any_of(ranks.begin(), ranks.end(), [](const RankState& rank) { return !is_lost(rank); });
  const auto step = step_of(ranks);
  if (anybody && !step) {
    ++seen.impossible;
    ASSERT_FALSE(decided.has_value()) << in_words(sizes, ranks);
    EXPECT_EQ(decided.error().code(), ErrorCode::kInternal) << decided.error().message();
    return;
  }
  if (!anybody || has_a_shard_without_holder(sizes, ranks)) {
    ++seen.fell_back;
    ASSERT_FALSE(decided.has_value()) << in_words(sizes, ranks);
    EXPECT_EQ(decided.error().code(), ErrorCode::kNotFound) << decided.error().message();
    return;
  }
  ASSERT_TRUE(decided.has_value()) << in_words(sizes, ranks) << decided.error().message();
  ASSERT_EQ(decided->step, *step + 1) << in_words(sizes, ranks);
  ASSERT_EQ(Follower(sizes, ranks, *decided).follow(), "") << in_words(sizes, ranks);
  const bool unfinished = std::any_of(ranks.begin(), ranks.end(), [&](const RankState& rank) {
    return rank.tag.phase == Phase::kUpdate;
  });
  ++(unfinished ? seen.committed : seen.run_again);
  std::vector<std::uint32_t> lost;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
    if (is_lost(ranks[rank])) lost.push_back(rank);
  EXPECT_EQ(decided->replaced, lost);
}

// Few ranks in all states, many in some; half of those such that a run comes to them.
TEST(Recovery, NeverLeavesAMixtureAndLosesNothingThatAHolderHas) {
  Seen seen;
  std::mt19937 random(1);
  const auto& states = all_states();
  for (const ParallelSizes& sizes : all_sizes()) {
    const std::uint32_t count = sizes.ranks();
    for (const auto& lost : losses_of(count)) {
      std::vector<RankState> ranks(count);
      const auto lose = [&] {
        for (const std::uint32_t rank : lost) ranks[rank] = kLost;
      };
      if (count <= 3) {
        for (std::size_t number = 0; number < states.size() * states.size() * states.size();
             ++number) {
          std::size_t digits = number;
          for (RankState& rank : ranks) {
            rank = states[digits % states.size()];
            digits /= states.size();
          }
          lose();
          check(sizes, ranks, seen);
        }
        continue;
      }
      for (int draw = 0; draw < kDraws; ++draw) {
        const RankState other{{kStep - 1 + random() % 3, Phase::kUpdate}, true};
        for (RankState& rank : ranks) {
          rank = states[random() % states.size()];
          while (draw % 2 == 0 && !step_of({rank, other})) rank = states[random() % states.size()];
        }
        lose();
        check(sizes, ranks, seen);
      }
    }
  }
  EXPECT_GT(seen.committed, 500);
  EXPECT_GT(seen.run_again, 500);
  EXPECT_GT(seen.fell_back, 500);
  EXPECT_GT(seen.impossible, 500);
}

const RankState kForward{{kStep, Phase::kForward}, false};
const RankState kReduced{{kStep, Phase::kBackward}, true};
const RankState kPast{{kStep, Phase::kUpdate}, true};
const RankState kNext{{kStep + 1, Phase::kForward}, true};

TEST(Recovery, RunsAStepAgainWhenNobodyHasPassedItsBarrier) {
  const auto resume = decide({.dp = 2}, {kReduced, kLost});
  ASSERT_TRUE(resume.has_value()) << resume.error().message();
  EXPECT_EQ(resume->step, kStep);
  EXPECT_TRUE(resume->commits.empty());
  EXPECT_EQ(resume->replaced, std::vector<std::uint32_t>{1});
  const std::vector<Transfer> all{
      {.from = 0, .to = 1, .array = Array::kDense, .member = 0, .with_state = true},
      {.from = 0, .to = 1, .array = Array::kDense, .member = 1, .with_state = true},
      {.from = 0, .to = 1, .array = Array::kExperts, .member = 0, .with_state = true},
      {.from = 0, .to = 1, .array = Array::kExperts, .member = 1, .with_state = true}};
  EXPECT_EQ(resume->transfers, all);
  // Nothing is given where nothing was lost.
  const auto whole = decide({.dp = 2}, {kForward, kReduced});
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->step, kStep);
  EXPECT_TRUE(whole->transfers.empty());
}

TEST(Recovery, CommitsWhenOneHasPassedTheBarrier) {
  const auto resume = decide({.dp = 4}, {kReduced, kLost, kPast, kReduced});
  ASSERT_TRUE(resume.has_value()) << resume.error().message();
  EXPECT_EQ(resume->step, kStep + 1);
  EXPECT_EQ(resume->commits, (std::vector<std::uint32_t>{0, 3}));
  // Of another stage, which has ended the step already.
  const auto stages = decide({.pp = 2, .dp = 2}, {kNext, kNext, kLost, kReduced});
  ASSERT_TRUE(stages.has_value()) << stages.error().message();
  EXPECT_EQ(stages->step, kStep + 1);
  EXPECT_EQ(stages->commits, std::vector<std::uint32_t>{3});
  EXPECT_TRUE(std::all_of(stages->transfers.begin(), stages->transfers.end(),
                          [](const Transfer& one) { return one.from == 3 && one.to == 2; }));
}

TEST(Recovery, ATagIsReadBackFromItsWord) {
  EXPECT_EQ(word_of({}), 0U);
  const std::uint64_t last = (std::uint64_t{1} << 60U) - 1;
  for (const std::uint64_t step : {std::uint64_t{1}, kStep, last})
    for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate}) {
      const Tag tag{step, phase};
      EXPECT_EQ(tag_of_word(word_of(tag)), tag) << to_string(tag);
      EXPECT_LT(word_of({step, Phase::kEmpty}), word_of(tag)) << "in the order of training";
    }
  EXPECT_LT(word_of({kStep, Phase::kUpdate}), word_of({kStep + 1, Phase::kForward}));
  EXPECT_EQ(tag_of_word((kStep << 4U) | 9U), Tag{}) << "of no phase";
}

TEST(Recovery, SaysWhatIsLostOrCannotBe) {
  const auto why = [](const ParallelSizes& sizes, const std::vector<RankState>& ranks) {
    const auto resume = decide(sizes, ranks);
    return resume ? "it goes on" : resume.error().message();
  };
  EXPECT_EQ(why({.dp = 4}, {kForward, kForward, kLost, kLost}),
            "ranks 2 and 3, the only holders of shard 2 of the dense parameters of pipeline rank "
            "0, are lost");
  EXPECT_EQ(why({.dp = 4}, {kLost, kForward, kForward, kLost}),
            "ranks 3 and 0, the only holders of shard 3 of the dense parameters of pipeline rank "
            "0, are lost");
  EXPECT_EQ(why({.dp = 4}, {kLost, kForward, kLost, kForward}), "it goes on");
  EXPECT_EQ(why({.pp = 2, .ep = 2, .dp = 2}, {kForward, kForward, kForward, kLost}),
            "rank 3, the only holder of shard 0 of the experts of pipeline rank 1, is lost");
  EXPECT_EQ(why({.dp = 2}, {kLost, kLost}), "no remaining rank has weights of any step");
  EXPECT_EQ(why({.dp = 3}, {kPast, kForward, kLost}),
            "rank 1 is at step 5, forward without its reduced gradients although another rank has "
            "passed the barrier of step 5, which needs all ranks");
  EXPECT_EQ(why({.dp = 2}, {kPast, {{0, Phase::kForward}, false}}),
            "rank 1 is at step 0, forward; steps count from 1");
}

}  // namespace
}  // namespace wsync::training
