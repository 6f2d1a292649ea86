// The position of each rank of a trainer: which stages it runs, which parameters it holds, and with
// which ranks it sums gradients.
//
// Ranks are numbered as in Megatron-LM: data-parallel replicas are adjacent, pipeline ranks are
// not. Expert parallelism lies inside data parallelism: `ep` adjacent replicas share the experts of
// each layer, and dp / ep such groups hold copies of them.
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
// Returns kInvalidInput, which names the incompatible sizes and possible ones.
[[nodiscard]] Result<> check_parallel(const ParallelSizes& sizes, const moe::ModelSpec& spec);

// The position of one rank.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t pipeline = 0;  // below pp
  std::uint32_t replica = 0;   // below dp
  std::uint32_t expert = 0;    // replica % ep: selects the rank's part of each layer's experts
};
[[nodiscard]] Place place_of(const ParallelSizes& sizes, std::uint32_t rank);
// Returns the ranks that run the same stages, by replica. They sum the gradients of all parameters
// except the experts.
[[nodiscard]] std::vector<std::uint32_t> replica_team(const ParallelSizes& sizes,
                                                      const Place& place);
// Subsets of replica_team(): the ranks that share experts with this one, and the ranks that hold
// the same experts.
[[nodiscard]] std::vector<std::uint32_t> expert_team(const ParallelSizes& sizes,
                                                     const Place& place);
[[nodiscard]] std::vector<std::uint32_t> expert_copies_team(const ParallelSizes& sizes,
                                                            const Place& place);

// Returns the number of layers of a stage, and the index of its first layer in the whole model.
[[nodiscard]] std::uint32_t layers_of_stage(const ParallelSizes& sizes, const moe::ModelSpec& spec);
// The parameters of a rank, both lists in the order of moe::all_parameters(). The head of a model
// with tied embeddings is not a separate parameter.
struct RankParameters {
  std::vector<moe::Parameter> dense;    // all except the experts
  std::vector<moe::Parameter> experts;  // the rank's part of each layer's experts
};
[[nodiscard]] RankParameters parameters_of(const ParallelSizes& sizes, const Place& place,
                                           const moe::ModelSpec& spec);

// A block over which squares are summed for the norm (optimizer.h): elements [first, first + count)
// of the array of a list of parameters. All elements belong to one parameter.
struct NormBlock {
  std::size_t parameter = 0;
  std::size_t first = 0;
  std::size_t count = 0;
};
[[nodiscard]] std::vector<NormBlock> norm_blocks(const std::vector<moe::Parameter>& parameters);
// Returns the cuts of ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054, section 5.1). Member
// i of n owns the blocks [cuts[i], cuts[i + 1]) of `blocks`, so that each block has one owner.
[[nodiscard]] std::vector<std::size_t> shard_cuts(std::size_t blocks, std::size_t members);

}  // namespace wsync::training
