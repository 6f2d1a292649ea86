#include "trainer_side/training/layout.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "trainer_side/training/optimizer.h"

namespace wsync::training {

Result<> check_parallel(const ParallelSizes& sizes, const moe::ModelSpec& spec) {
  const auto refused = [](std::string why) {
    return fail(ErrorCode::kInvalidInput, std::move(why));
  };
  if (sizes.pp == 0 || sizes.vpp == 0 || sizes.ep == 0 || sizes.dp == 0)
    return refused("parallel: every size must be at least 1");
  if (sizes.dp % sizes.ep != 0)
    return refused(
        fmt::format("parallel: ep {} does not divide dp {}: experts are shared by "
                    "data-parallel replicas",
                    sizes.ep, sizes.dp));
  if (const std::uint64_t ranks = std::uint64_t{sizes.pp} * sizes.dp;
      ranks > limits::kTrainerRankCount)
    return refused(fmt::format("parallel: pp {} times dp {} is {} ranks; expected {} at most",
                               sizes.pp, sizes.dp, ranks, limits::kTrainerRankCount));
  if (const std::uint64_t stages = std::uint64_t{sizes.pp} * sizes.vpp; spec.layers % stages != 0)
    return refused(
        fmt::format("parallel: {} layers cannot be cut into {} stages (pp {} times vpp {}) of the "
                    "same number of layers",
                    spec.layers, stages, sizes.pp, sizes.vpp));
  if (spec.experts % sizes.ep != 0)
    return refused(fmt::format("parallel: ep {} does not divide the {} experts of a layer",
                               sizes.ep, spec.experts));
  return {};
}

Place place_of(const ParallelSizes& sizes, std::uint32_t rank) {
  const std::uint32_t replica = rank % sizes.dp;
  return {
      .rank = rank, .pipeline = rank / sizes.dp, .replica = replica, .expert = replica % sizes.ep};
}

std::vector<std::uint32_t> replica_team(const ParallelSizes& sizes, const Place& place) {
  std::vector<std::uint32_t> team;
  for (std::uint32_t replica = 0; replica < sizes.dp; ++replica)
    team.push_back(sizes.rank_of(place.pipeline, replica));
  return team;
}

std::vector<std::uint32_t> expert_team(const ParallelSizes& sizes, const Place& place) {
  std::vector<std::uint32_t> team;
  for (std::uint32_t i = 0; i < sizes.ep; ++i)
    team.push_back(sizes.rank_of(place.pipeline, place.replica - place.expert + i));
  return team;
}

std::vector<std::uint32_t> expert_copies_team(const ParallelSizes& sizes, const Place& place) {
  std::vector<std::uint32_t> team;
  for (std::uint32_t replica = place.expert; replica < sizes.dp; replica += sizes.ep)
    team.push_back(sizes.rank_of(place.pipeline, replica));
  return team;
}

std::uint32_t layers_of_stage(const ParallelSizes& sizes, const moe::ModelSpec& spec) {
  return spec.layers / sizes.stages();
}

RankParameters parameters_of(const ParallelSizes& sizes, const Place& place,
                             const moe::ModelSpec& spec) {
  RankParameters parameters;
  if (place.pipeline == 0) parameters.dense.push_back(moe::embedding_of(spec));
  const std::uint32_t layers = layers_of_stage(sizes, spec);
  const std::uint32_t experts = spec.experts / sizes.ep;
  for (std::uint32_t chunk = 0; chunk < sizes.vpp; ++chunk) {
    const std::uint32_t stage = chunk * sizes.pp + place.pipeline;
    for (std::uint32_t layer = stage * layers; layer < (stage + 1) * layers; ++layer) {
      const std::vector<moe::Parameter> all = moe::layer_parameters(spec, layer);
      // The last parameters are gate, up and down of each expert.
      const std::size_t dense = all.size() - std::size_t{3} * spec.experts;
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (i < dense)
          parameters.dense.push_back(all[i]);
        else if ((i - dense) / 3 / experts == place.expert)
          parameters.experts.push_back(all[i]);
      }
    }
  }
  if (place.pipeline + 1 == sizes.pp) {
    parameters.dense.push_back(moe::final_norm_of(spec));
    if (!spec.tied_embeddings) parameters.dense.push_back(moe::head_of(spec));
  }
  return parameters;
}

std::vector<NormBlock> norm_blocks(const std::vector<moe::Parameter>& parameters) {
  std::vector<NormBlock> blocks;
  std::size_t first = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t end = first + parameters[i].elements();
    for (; first < end; first += blocks.back().count)
      blocks.push_back(
          {.parameter = i, .first = first, .count = std::min(kNormBlock, end - first)});
  }
  return blocks;
}

std::vector<std::size_t> shard_cuts(std::size_t blocks, std::size_t members) {
  std::vector<std::size_t> cuts;
  for (std::size_t member = 0; member <= members; ++member)
    cuts.push_back(blocks * member / members);
  return cuts;
}

}  // namespace wsync::training
