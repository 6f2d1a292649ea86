// Where each rank of a trainer stands: which stages it runs, which parameters it has, and with whom
// it sums what.
//
// Ranks are numbered as in Megatron-LM: data-parallel replicas next to each other, pipeline ranks
// apart. Expert parallelism lies inside data parallelism: `ep` replicas next to each other share
// the experts of each layer, and dp / ep such groups have copies of them.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "trainer_side/training/parameters.h"

namespace wsync::training {

struct ParallelSizes {
  std::uint32_t pp = 1;   // pipeline ranks
  std::uint32_t vpp = 1;  // chunks of a pipeline rank
  std::uint32_t ep = 1;   // replicas that share experts; divides dp
  std::uint32_t dp = 1;   // data-parallel replicas
  [[nodiscard]] std::uint32_t ranks() const noexcept { return pp * dp; }
  [[nodiscard]] std::uint32_t stages() const noexcept { return pp * vpp; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t pipeline,
                                      std::uint32_t replica) const noexcept {
    return pipeline * dp + replica;
  }
};
// kInvalidInput says which sizes do not go together, and what would.
[[nodiscard]] Result<> check_parallel(const ParallelSizes& sizes, const moe::ModelSpec& spec);

// One rank.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t pipeline = 0;  // below pp
  std::uint32_t replica = 0;   // below dp
  std::uint32_t expert = 0;    // replica % ep: which of a layer's experts it has
};
[[nodiscard]] Place place_of(const ParallelSizes& sizes, std::uint32_t rank);
// The ranks that run the same stages, by replica: they sum the gradients of all but the experts.
[[nodiscard]] std::vector<std::uint32_t> replica_team(const ParallelSizes& sizes,
                                                      const Place& place);
// Of these, the ranks that share experts with this one, and those that have the same experts.
[[nodiscard]] std::vector<std::uint32_t> expert_team(const ParallelSizes& sizes,
                                                     const Place& place);
[[nodiscard]] std::vector<std::uint32_t> expert_copies_team(const ParallelSizes& sizes,
                                                            const Place& place);

// The layers of a stage: count, and the first one of the whole model.
[[nodiscard]] std::uint32_t layers_of_stage(const ParallelSizes& sizes, const moe::ModelSpec& spec);
// The parameters that a rank has, both lists in the order of moe::all_parameters(). The head of a
// model with tied embeddings is no parameter of its own.
struct RankParameters {
  std::vector<moe::Parameter> dense;    // all but the experts
  std::vector<moe::Parameter> experts;  // those of its part of each layer's
};
[[nodiscard]] RankParameters parameters_of(const ParallelSizes& sizes, const Place& place,
                                           const moe::ModelSpec& spec);

// A block that norms are summed in (optimizer.h): elements [first, first + count) of the array of a
// list of parameters, all of one parameter.
struct NormBlock {
  std::size_t parameter = 0;
  std::size_t first = 0;
  std::size_t count = 0;
};
[[nodiscard]] std::vector<NormBlock> norm_blocks(const std::vector<moe::Parameter>& parameters);
// ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054, section 5.1): member i of n has the
// blocks [cuts[i], cuts[i + 1]) of `blocks`, so that each has one owner.
[[nodiscard]] std::vector<std::size_t> shard_cuts(std::size_t blocks, std::size_t members);

}  // namespace wsync::training
