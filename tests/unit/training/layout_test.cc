// Who has what: every parameter has exactly one owner, whatever the sizes, and sizes that do not go
// together say why.
#include "trainer_side/training/layout.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/training/rank_threads.h"
#include "trainer_side/training/optimizer.h"

namespace wsync::training {
namespace {

std::vector<ParallelSizes> many_sizes() {
  std::vector<ParallelSizes> all;
  for (const std::uint32_t pp : {1U, 2U, 3U, 4U})
    for (const std::uint32_t vpp : {1U, 2U, 3U})
      for (const std::uint32_t ep : {1U, 2U, 4U})
        for (const std::uint32_t groups : {1U, 2U, 3U})
          all.push_back({.pp = pp, .vpp = vpp, .ep = ep, .dp = ep * groups});
  return all;
}
std::string text_of(const ParallelSizes& sizes) {
  return "pp " + std::to_string(sizes.pp) + " vpp " + std::to_string(sizes.vpp) + " ep " +
         std::to_string(sizes.ep) + " dp " + std::to_string(sizes.dp);
}

// Blocks of several to a parameter, and of less than one.
moe::ModelSpec spec_of(const ParallelSizes& sizes, bool tied) {
  moe::ModelSpec spec = small_options(sizes, sizes.pp, 2).spec;
  spec.vocabulary = 600;
  spec.tied_embeddings = tied;
  return spec;
}

TEST(Layout, EveryBlockOfEveryParameterHasOneOwner) {
  for (const ParallelSizes& sizes : many_sizes())
    for (const bool tied : {false, true}) {
      const moe::ModelSpec spec = spec_of(sizes, tied);
      ASSERT_TRUE(check_parallel(sizes, spec)) << text_of(sizes);
      std::map<std::pair<std::string, std::size_t>, int> owners;  // parameter, first element
      const auto own = [&](const std::vector<moe::Parameter>& list,
                           const std::vector<std::uint32_t>& team, std::uint32_t rank) {
        const std::vector<NormBlock> blocks = norm_blocks(list);
        const std::vector<std::size_t> cuts = shard_cuts(blocks.size(), team.size());
        ASSERT_EQ(cuts.front(), 0U);
        ASSERT_EQ(cuts.back(), blocks.size());
        const auto member =
            static_cast<std::size_t>(std::find(team.begin(), team.end(), rank) - team.begin());
        ASSERT_LT(member, team.size());
        for (std::size_t i = cuts[member]; i < cuts[member + 1]; ++i) {
          std::size_t begin = 0;
          for (std::size_t p = 0; p < blocks[i].parameter; ++p) begin += list[p].elements();
          ++owners[{list[blocks[i].parameter].name, blocks[i].first - begin}];
        }
      };
      for (std::uint32_t rank = 0; rank < sizes.ranks(); ++rank) {
        const Place place = place_of(sizes, rank);
        const RankParameters parameters = parameters_of(sizes, place, spec);
        own(parameters.dense, replica_team(sizes, place), rank);
        own(parameters.experts, expert_copies_team(sizes, place), rank);
      }
      std::size_t expected = 0;
      for (const moe::Parameter& parameter : moe::all_parameters(spec))
        for (std::size_t first = 0; first < parameter.elements(); first += kNormBlock, ++expected) {
          const auto count = owners[{parameter.name, first}];
          ASSERT_EQ(count, 1) << parameter.name << " from " << first << ", " << text_of(sizes);
        }
      EXPECT_EQ(owners.size(), expected) << text_of(sizes);
    }
}

TEST(Layout, ParametersStandInTheOrderOfTheModel) {
  for (const ParallelSizes& sizes : many_sizes()) {
    const moe::ModelSpec spec = spec_of(sizes, false);
    std::map<std::string, std::size_t> place_in_model;
    for (const moe::Parameter& parameter : moe::all_parameters(spec))
      place_in_model.emplace(parameter.name, place_in_model.size());
    for (std::uint32_t rank = 0; rank < sizes.ranks(); ++rank) {
      const RankParameters parameters = parameters_of(sizes, place_of(sizes, rank), spec);
      for (const auto* list : {&parameters.dense, &parameters.experts})
        for (std::size_t i = 1; i < list->size(); ++i)
          ASSERT_LT(place_in_model.at((*list)[i - 1].name), place_in_model.at((*list)[i].name));
    }
  }
}

TEST(Layout, TeamsAgreeWhoeverAsks) {
  using Team = std::vector<std::uint32_t> (*)(const ParallelSizes&, const Place&);
  for (const ParallelSizes& sizes : many_sizes())
    for (const auto& [team_of, size] : {std::pair<Team, std::uint32_t>{replica_team, sizes.dp},
                                        {expert_team, sizes.ep},
                                        {expert_copies_team, sizes.dp / sizes.ep}})
      for (std::uint32_t rank = 0; rank < sizes.ranks(); ++rank) {
        const std::vector<std::uint32_t> team = team_of(sizes, place_of(sizes, rank));
        ASSERT_EQ(team.size(), size);
        ASSERT_TRUE(std::is_sorted(team.begin(), team.end()));
        ASSERT_EQ(std::count(team.begin(), team.end(), rank), 1);
        for (const std::uint32_t other : team)
          ASSERT_EQ(team_of(sizes, place_of(sizes, other)), team) << text_of(sizes);
      }
}

TEST(Layout, SizesThatDoNotGoTogetherSayWhy) {
  const moe::ModelSpec spec = small_options({.pp = 2, .vpp = 2}, 4).spec;  // 4 layers, 4 experts
  const auto why = [&](const ParallelSizes& sizes) {
    const Result<> checked = check_parallel(sizes, spec);
    if (checked) return std::string("nothing");
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidInput);
    return checked.error().message();
  };
  EXPECT_EQ(why({.pp = 2, .vpp = 2, .ep = 2, .dp = 4}), "nothing");
  EXPECT_EQ(why({.pp = 0}), "parallel: every size must be at least 1");
  EXPECT_EQ(why({.pp = 1, .vpp = 1, .ep = 0, .dp = 2}), "parallel: every size must be at least 1");
  EXPECT_EQ(why({.pp = 1, .vpp = 1, .ep = 2, .dp = 3}),
            "parallel: ep 2 does not divide dp 3: experts are shared by data-parallel replicas");
  EXPECT_EQ(why({.pp = 3}),
            "parallel: 4 layers cannot be cut into 3 stages (pp 3 times vpp 1) of the same number "
            "of layers");
  EXPECT_EQ(why({.pp = 4, .vpp = 2}),
            "parallel: 4 layers cannot be cut into 8 stages (pp 4 times vpp 2) of the same number "
            "of layers");
  EXPECT_EQ(why({.pp = 1, .vpp = 1, .ep = 3, .dp = 3}),
            "parallel: ep 3 does not divide the 4 experts of a layer");
  EXPECT_EQ(why({.pp = 1, .vpp = 1, .ep = 8, .dp = 8}),
            "parallel: ep 8 does not divide the 4 experts of a layer");
  // Products that 32 bits do not hold.
  EXPECT_EQ(why({.pp = 65'536, .vpp = 65'536, .ep = 1, .dp = 65'536}),
            "parallel: pp 65536 times dp 65536 is 4294967296 ranks; expected 4096 at most");
  EXPECT_EQ(why({.pp = 4096, .vpp = 1'048'576}),
            "parallel: 4 layers cannot be cut into 4294967296 stages (pp 4096 times vpp 1048576) "
            "of the same number of layers");
}

TEST(Layout, TrainingThatDoesNotGoTogetherSaysWhy) {
  const TrainingOptions possible = small_options({.pp = 2, .vpp = 2, .ep = 2, .dp = 2}, 4);
  ASSERT_TRUE(check_training(possible));
  const auto why = [&](auto change) {
    TrainingOptions options = possible;
    change(options);
    const Result<> checked = check_training(options);
    EXPECT_EQ(plan_training(options).has_value(), checked.has_value());
    if (checked) return std::string("nothing");
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidInput);
    return checked.error().message();
  };
  const auto has = [](const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  has(why([](TrainingOptions& o) {
        o.sizes.ep = 1;
        o.schedule.overlap = true;
      }),
      "overlap with ep 1");
  has(why([](TrainingOptions& o) { o.schedule.shape.pp = 4; }),
      "schedule: planned for pp 4 and vpp 2, the ranks are cut into pp 2 and vpp 2");
  has(why([](TrainingOptions& o) { o.sequence = 0; }), "at least one sequence of at least one");
  has(why([](TrainingOptions& o) { o.sequence = 17; }), "sequences of 17 tokens");
  has(why([](TrainingOptions& o) { o.optimizer.beta1 = 1; }), "beta1");
  has(why([](TrainingOptions& o) { o.spec.heads = 3; }), "heads");
  has(why([](TrainingOptions& o) { o.schedule.shape.microbatches = 1; }), "micro-batches");
  has(why([](TrainingOptions& o) {
        o.sizes.vpp = o.schedule.shape.vpp = 1;
        o.schedule.order = schedule::Order::kZeroBubbleH1;
        o.offload = true;
      }),
      "turn offload off");
}

}  // namespace
}  // namespace wsync::training
