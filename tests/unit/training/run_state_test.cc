// A run's state: what all ranks have of it comes together on rank 0, goes to a directory and back,
// and to ranks of another layout; and what a directory that is none is told.
#include "trainer_side/training/run_state.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "shared/weights/safetensors.h"
#include "tests/unit/training/rank_threads.h"

namespace wsync::training {
namespace {

namespace fs = std::filesystem;

const RunFacts kFacts{.step = 7,
                      .data_seed = 3,
                      .text = {.low = 5, .high = 6},
                      .dp = 2,
                      .microbatches = 4,
                      .sequences = 2,
                      .sequence = 8};

// Different values everywhere.
RunState made_state(const moe::ModelSpec& spec) {
  const std::vector<moe::Parameter> all = moe::all_parameters(spec);
  RunState state{.spec = spec,
                 .facts = kFacts,
                 .weights = ParameterSet(all),
                 .mean = ParameterSet(all),
                 .variance = ParameterSet(all)};
  float next = 1;
  for (ParameterSet* set : {&state.weights, &state.mean, &state.variance})
    for (float& value : set->all()) value = next++;
  return state;
}

class StateDirectory : public testing::Test {
 protected:
  StateDirectory() : root_(testing::TempDir() + "wsync-state-XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~StateDirectory() override { fs::remove_all(root_); }
  [[nodiscard]] std::string path() const { return state_directory(root_, kFacts.step); }
  [[nodiscard]] std::string optimizer() const { return path() + "/optimizer/state.safetensors"; }
  // The sentence of a load that must fail.
  [[nodiscard]] std::string why() const {
    const auto loaded = load_state(path());
    return loaded ? std::string("loaded") : loaded.error().message();
  }
  // Puts the optimizer's file together anew, with these changes.
  void rewrite(const std::map<std::string, std::string>& metadata, const std::string& without) {
    const auto file = SafetensorsFile::open(optimizer());
    ASSERT_TRUE(file.has_value());
    std::vector<TensorInfo> infos;
    for (const SafetensorsEntry& entry : file->tensors())
      if (entry.info.name != without) infos.push_back(entry.info);
    std::map<std::string, std::string> all = file->metadata();
    for (const auto& [key, value] : metadata) all[key] = value;
    ASSERT_TRUE(write_safetensors(optimizer(), infos, all,
                                  [](std::size_t, std::uint64_t, std::span<std::byte> out) {
                                    std::fill(out.begin(), out.end(), std::byte{});
                                    return Result<>();
                                  })
                    .has_value());
  }

  const moe::ModelSpec spec_{.vocabulary = 12, .hidden = 8, .layers = 2, .experts = 2};

 private:
  std::string root_;
};

TEST_F(StateDirectory, ComesBackAsItWas) {
  const RunState state = made_state(spec_);
  EXPECT_TRUE(path().ends_with("/step_7"));
  ASSERT_TRUE(save_state(path(), state).has_value());
  const auto loaded = load_state(path());
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  EXPECT_EQ(loaded->spec, state.spec);
  EXPECT_EQ(loaded->facts, state.facts);
  EXPECT_TRUE(same_bits(loaded->weights.all(), state.weights.all()));
  EXPECT_TRUE(same_bits(loaded->mean.all(), state.mean.all()));
  EXPECT_TRUE(same_bits(loaded->variance.all(), state.variance.all()));
  EXPECT_FALSE(save_state(path(), state).has_value()) << "a state is not written over another";
}

TEST_F(StateDirectory, WhatIsNoneIsRefused) {
  EXPECT_NE(why().find("not a state to resume from"), std::string::npos) << why();
  const RunState state = made_state(spec_);
  ASSERT_TRUE(save_state(path(), state).has_value());
  rewrite({{"step", "7x"}}, "");
  EXPECT_NE(why().find("'step' of its metadata is '7x'"), std::string::npos) << why();
  rewrite({{"step", "7"}, {"dp", ""}}, "");
  EXPECT_NE(why().find("'dp' of its metadata is ''"), std::string::npos) << why();
  rewrite({{"dp", "99999999999"}}, "");
  EXPECT_NE(why().find("'dp' of its metadata"), std::string::npos) << why();
  rewrite({{"dp", "2"}, {"text", "no digest"}}, "");
  EXPECT_NE(why().find("'text' of its metadata"), std::string::npos) << why();
  rewrite({{"text", Digest{}.to_string()}, {"format", "2"}}, "");
  EXPECT_NE(why().find("format '2'"), std::string::npos) << why();
  rewrite({{"format", "1"}}, "mean/model.norm.weight");
  EXPECT_NE(why().find("mean/model.norm.weight is missing"), std::string::npos) << why();
  fs::resize_file(optimizer(), fs::file_size(optimizer()) / 2);
  EXPECT_NE(why().find("state.safetensors"), std::string::npos) << why();
}

TEST_F(StateDirectory, OfAnotherModelIsRefused) {
  ASSERT_TRUE(save_state(path(), made_state(spec_)).has_value());
  moe::ModelSpec other = spec_;
  other.hidden = 16;
  other.head_dim = 16;
  ASSERT_TRUE(fs::remove_all(path()) > 0);
  RunState state = made_state(other);
  ASSERT_TRUE(save_state(path(), state).has_value());
  std::ofstream(path() + "/config.json") << moe::write_config(spec_);
  EXPECT_NE(why().find("according to config.json"), std::string::npos) << why();
}

std::vector<float> values_of(const Shard& shard, const HeldPart& held, const ParameterSet& all) {
  std::vector<float> array;
  for (const moe::Parameter& parameter : shard.weights->parameters())
    for (const float value : all.values(parameter.name)) array.push_back(value);
  return {array.begin() + static_cast<std::ptrdiff_t>(held.begin),
          array.begin() + static_cast<std::ptrdiff_t>(held.end)};
}

// Every rank takes its part of a state, and rank 0 gets the same state back.
class StateOfRanks : public testing::TestWithParam<ParallelSizes> {};

TEST_P(StateOfRanks, GoesToThemAndComesBack) {
  TrainingOptions options = small_options(GetParam(), 4);
  options.second_holders = true;
  const RunState state = made_state(options.spec);
  std::mutex mutex;
  std::optional<RunState> back;
  run_as_threads(options.sizes.ranks(), [&](std::uint32_t, auto owned) {
    collective::ProcessGroup* const group = owned.get();
    auto rank = TrainingRank::create(options, group);
    ASSERT_TRUE(rank.has_value()) << rank.error().message();
    adopt_state(**rank, state);
    ASSERT_TRUE((*rank)->update().share_tied_head().has_value());
    for (const Shard& shard : (*rank)->update().shards()) {
      ASSERT_EQ(shard.second.has_value(), shard.team.size() > 1);
      if (!shard.second) continue;
      EXPECT_TRUE(same_bits(shard.second->mean, values_of(shard, *shard.second, state.mean)));
      EXPECT_TRUE(
          same_bits(shard.second->variance, values_of(shard, *shard.second, state.variance)));
    }
    auto gathered = gather_state(**rank, kFacts, group);
    ASSERT_TRUE(gathered.has_value()) << gathered.error().message();
    EXPECT_EQ(gathered->has_value(), (*rank)->place().rank == 0);
    if (!*gathered) return;
    const std::lock_guard lock(mutex);
    back.emplace(std::move(**gathered));
  });
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->facts, kFacts);
  EXPECT_TRUE(same_bits(back->weights.all(), state.weights.all()));
  EXPECT_TRUE(same_bits(back->mean.all(), state.mean.all()));
  EXPECT_TRUE(same_bits(back->variance.all(), state.variance.all()));
}
INSTANTIATE_TEST_SUITE_P(Layouts, StateOfRanks,
                         testing::Values(ParallelSizes{}, ParallelSizes{.pp = 2, .vpp = 2},
                                         ParallelSizes{.ep = 2, .dp = 4},
                                         ParallelSizes{.pp = 2, .vpp = 1, .ep = 2, .dp = 2}));

}  // namespace
}  // namespace wsync::training
