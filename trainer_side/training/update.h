// The end of a step on every rank: gradients are summed over replicas, clipped by their norm over
// the whole model, and each rank lets AdamW change its shard of the parameters it has; then the
// ranks that have the same parameters give each other their shards (ZeRO stage 1).
//
// With second holders, the reduced gradient and the optimizer's state of each shard are on the next
// member of its team too, which takes the same steps: then a step that all have confirmed ends even
// if a rank is lost in it (recovery.h).
//
// All sums are taken in an order that does not depend on the layout: replicas by number, squares in
// fixed blocks in the order of the model.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shared/process_group/collectives.h"
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
  bool second_holders = false;
  // Every rank has confirmed the barrier of this step, and nothing has changed yet; or, in
  // finish(), another rank was told so.
  std::function<void(std::uint64_t step)> on_barrier;
};

// Elements [begin, end) of an array of parameters: one member's shard of it, as a rank holds it.
struct HeldPart {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<float> mean, variance;  // the optimizer's state
  std::vector<float> gradient;        // summed over replicas
};

// An array of parameters that this rank has, and what it holds of it for the optimizer.
struct Shard {
  ParameterSet* weights = nullptr;
  collective::Team team;              // who has these parameters
  std::vector<NormBlock> blocks;      // of the array
  std::vector<std::size_t> cuts;      // in elements, of each member
  std::vector<std::size_t> model_of;  // where a parameter stands in moe::all_parameters()
  HeldPart own;
  // Of the member before this one (second_held_by()); none without second holders and in a team of
  // one.
  std::optional<HeldPart> second;
  // What this rank holds of a member's shard; null when that is nothing.
  [[nodiscard]] HeldPart* held_of(std::uint32_t member);
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
  // weights may be of this step or of the one before: progress() says which.
  [[nodiscard]] Result<StepResult> run(std::uint64_t step, double loss, std::uint64_t tokens,
                                       RankGradients& gradients);
  // The optimizer's state: of the dense parameters, then of the experts (Array in recovery.h).
  [[nodiscard]] std::vector<Shard>& shards() noexcept { return shards_; }
  // Mean and variance become zero, on this rank.
  void clear_state() noexcept;

  // How far this rank's own part has come.
  struct Progress {
    // The step whose reduced gradients it has, of all parts that it holds; 0: of none.
    std::uint64_t reduced = 0;
    // The step whose barrier it has passed, and to which its held parts have come; 0: none since it
    // got its weights. `result` is that step's.
    std::uint64_t passed = 0;
    StepResult result;
  };
  [[nodiscard]] const Progress& progress() const noexcept { return progress_; }
  // Brings the parts that this rank holds to the end of `step`, whose barrier another rank has
  // passed and come to `result`; exchanges nothing, and does nothing twice. kInternal without the
  // reduced gradients of that step.
  [[nodiscard]] Result<> finish(std::uint64_t step, const StepResult& result);
  // Weights and state have been set from elsewhere to those after `step`, which came to `result`
  // where that is known.
  void set_taken(std::uint64_t step, const std::optional<StepResult>& result);
  // Gives the last pipeline rank the embeddings that its tied head is a copy of; for weights that
  // have come from elsewhere. Every rank calls it.
  [[nodiscard]] Result<> share_tied_head();

 private:
  [[nodiscard]] Result<> sum_gradients(RankGradients& gradients);
  [[nodiscard]] Result<> sum_tied_head(RankGradients& gradients);
  [[nodiscard]] Result<> add_tied_head(const ParameterSet& head);
  [[nodiscard]] Result<> give_to_second_holders();
  // Of every rank: its step, its loss, then the sums of its blocks.
  [[nodiscard]] Result<std::vector<std::vector<double>>> gather_sums(std::uint64_t step,
                                                                     double loss);
  // Every rank takes the same step, and all have come to the same sums.
  [[nodiscard]] Result<StepResult> agree(std::uint64_t step, double loss, std::uint64_t tokens);
  [[nodiscard]] Result<Error> why_not_finite(std::uint64_t step, double loss);
  void pass_barrier(std::uint64_t step, const StepResult& result);
  // AdamW on all that this rank holds.
  void apply();
  [[nodiscard]] Result<> share_weights();
  [[nodiscard]] TimePoint deadline() const { return now() + options_.deadline; }

  const UpdateOptions options_;
  const std::vector<moe::Parameter> all_;
  RankWeights& weights_;
  std::vector<Shard> shards_;
  // Of every rank, where its blocks stand among those of the whole model.
  std::vector<std::vector<std::size_t>> blocks_of_rank_;
  std::size_t block_count_ = 0;
  Progress progress_;
};

}  // namespace wsync::training
