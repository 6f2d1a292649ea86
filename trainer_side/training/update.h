// The end of a step on every rank: gradients are summed over replicas, clipped by their norm over
// the whole model, and each rank lets AdamW change its shard of the parameters it has; then the
// ranks that have the same parameters give each other their shards (ZeRO stage 1).
//
// All sums are taken in an order that does not depend on the layout: replicas by number, squares in
// fixed blocks in the order of the model.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/collective/collectives.h"
#include "trainer_side/training/layout.h"
#include "trainer_side/training/optimizer.h"
#include "trainer_side/training/pipeline.h"

namespace wsync::training {

// What a step came to, the same on every rank.
struct StepResult {
  double loss = 0;           // mean over the tokens of all replicas
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
};

// kRefused: step, loss, and the first parameter of the model that is not finite, or else the first
// whose gradient is not. `weights` and `gradients`: indices in moe::all_parameters(), if any.
[[nodiscard]] Error not_finite(std::uint64_t step, double loss,
                               const std::vector<moe::Parameter>& all,
                               std::optional<std::size_t> weight,
                               std::optional<std::size_t> gradient);

struct UpdateOptions {
  moe::ModelSpec spec;
  ParallelSizes sizes;
  Place place;
  OptimizerOptions optimizer;
  collective::ProcessGroup* group = nullptr;   // borrowed; may be null for one rank
  std::chrono::milliseconds deadline{60'000};  // of one exchange
};

// This rank's part of an array of parameters, and the optimizer's state of it.
struct Shard {
  ParameterSet* weights = nullptr;
  collective::Team team;              // who has these parameters
  std::vector<NormBlock> blocks;      // of the array
  std::vector<std::size_t> cuts;      // in elements, of each member
  std::vector<std::size_t> model_of;  // where a parameter stands in moe::all_parameters()
  std::vector<float> mean, variance;  // of this rank's elements
  std::vector<float> gradient;        // the same
  [[nodiscard]] std::size_t begin() const { return cuts[team.index()]; }
  [[nodiscard]] std::size_t end() const { return cuts[team.index() + 1]; }
};

// Thread: one at a time.
class Update {
 public:
  // `weights` is borrowed.
  Update(UpdateOptions options, RankWeights& weights);
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // Step `step`, counted from 1, of `tokens` tokens on all replicas; `loss` is what
  // Pipeline::Step::loss says. Nothing has changed when it fails with kRefused: not_finite(), or
  // ranks that are at different steps. Other errors as ProcessGroup::exchange(), after which
  // weights may be of this step or of the one before.
  [[nodiscard]] Result<StepResult> run(std::uint64_t step, double loss, std::uint64_t tokens,
                                       RankGradients& gradients);
  // The optimizer's state: of the dense parameters, then of the experts.
  [[nodiscard]] std::vector<Shard>& shards() noexcept { return shards_; }
  // Gives the last pipeline rank the embeddings that its tied head is a copy of; for weights that
  // have come from elsewhere. Every rank calls it.
  [[nodiscard]] Result<> share_tied_head();

 private:
  [[nodiscard]] Result<> sum_gradients(RankGradients& gradients);
  [[nodiscard]] Result<> sum_tied_head(RankGradients& gradients);
  [[nodiscard]] Result<> add_tied_head(const ParameterSet& head);
  // Of every rank: its step, its loss, then the sums of its blocks.
  [[nodiscard]] Result<std::vector<std::vector<double>>> gather_sums(std::uint64_t step,
                                                                     double loss);
  // Every rank takes the same step, and all have come to the same sums.
  [[nodiscard]] Result<StepResult> agree(std::uint64_t step, double loss, std::uint64_t tokens);
  [[nodiscard]] Result<Error> why_not_finite(std::uint64_t step, double loss);
  [[nodiscard]] TimePoint deadline() const { return now() + options_.deadline; }

  const UpdateOptions options_;
  const std::vector<moe::Parameter> all_;
  RankWeights& weights_;
  std::vector<Shard> shards_;
  // Of every rank, where its blocks stand among those of the whole model.
  std::vector<std::vector<std::size_t>> blocks_of_rank_;
  std::size_t block_count_ = 0;
};

}  // namespace wsync::training
