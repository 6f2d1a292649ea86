// The end of a step on every rank. Gradients are summed over replicas and clipped by their norm
// over the whole model. Each rank applies AdamW to its shard of its parameters. Then the ranks that
// have the same parameters exchange their shards (ZeRO stage 1).
//
// With second holders, the next member of each team also holds the reduced gradient and the
// optimizer's state of the shard, and applies the same updates. A step that all ranks have
// confirmed can then be completed even if a rank is lost in it (recovery.h).
//
// The order of all sums does not depend on the layout: replicas by number, squares in fixed blocks
// in the order of the model.
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

// The result of a step; the same on every rank.
struct StepResult {
  double loss = 0;           // mean over the tokens of all replicas
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
};

// Returns kRefused with the step, the loss, and the first parameter of the model that is not
// finite; if all are finite, the first one with a gradient that is not. `weights` and `gradients`
// are indices in moe::all_parameters(), if any.
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
  std::chrono::milliseconds deadline{60'000};  // deadline of one exchange
  bool second_holders = false;
  // Called when every rank has confirmed the barrier of this step and nothing has changed yet.
  // finish() calls it because another rank has passed that barrier.
  std::function<void(std::uint64_t step)> on_barrier;
};

// Elements [begin, end) of an array of parameters: one member's shard, as a rank holds it.
struct HeldPart {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<float> mean, variance;  // the optimizer's state
  std::vector<float> gradient;        // summed over replicas
};

// An array of parameters of this rank, and the parts of it that this rank holds for the optimizer.
struct Shard {
  ParameterSet* weights = nullptr;
  collective::Team team;              // ranks that have these parameters
  std::vector<NormBlock> blocks;      // blocks of the array
  std::vector<std::size_t> cuts;      // cuts between the members' shards, in elements
  std::vector<std::size_t> model_of;  // index of each parameter in moe::all_parameters()
  HeldPart own;
  // The shard of the previous member (second_held_by()). Absent without second holders and in a
  // team of one.
  std::optional<HeldPart> second;
  // Returns this rank's part of a member's shard; null if it holds none.
  [[nodiscard]] HeldPart* held_of(std::uint32_t member);
};

// Thread: one at a time.
class Update {
 public:
  // `weights` is borrowed.
  Update(UpdateOptions options, RankWeights& weights);
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // Runs the update of step `step`, counted from 1, with `tokens` tokens on all replicas; `loss` as
  // in Pipeline::Step::loss. Returns kRefused, with nothing changed, if values are not finite
  // (not_finite()) or if ranks are at different steps. Other errors as ProcessGroup::exchange();
  // the weights may then be those of this step or of the previous one, and progress() says which.
  [[nodiscard]] Result<StepResult> run(std::uint64_t step, double loss, std::uint64_t tokens,
                                       RankGradients& gradients);
  // The optimizer's state: of the dense parameters, then of the experts (Array in recovery.h).
  [[nodiscard]] std::vector<Shard>& shards() noexcept { return shards_; }
  // Sets mean and variance on this rank to zero.
  void clear_state() noexcept;

  // The progress of this rank's own part.
  struct Progress {
    // The step whose reduced gradients this rank has for all parts that it holds; 0 if none.
    std::uint64_t reduced = 0;
    // The step whose barrier this rank has passed, and to which its held parts were updated; 0 if
    // none since its weights were set. `result` is the result of that step.
    std::uint64_t passed = 0;
    StepResult result;
  };
  [[nodiscard]] const Progress& progress() const noexcept { return progress_; }
  // Completes the parts that this rank holds to the end of `step`. Another rank has passed the
  // barrier of this step with `result`. Exchanges nothing, and has no effect if called again.
  // Returns kInternal without the reduced gradients of that step.
  [[nodiscard]] Result<> finish(std::uint64_t step, const StepResult& result);
  // Call after weights and state were set to those after `step`. `result` is the result of that
  // step, if known.
  void set_taken(std::uint64_t step, const std::optional<StepResult>& result);
  // Sends the embeddings to the last pipeline rank, whose tied head is a copy of them. Needed after
  // weights were set. Every rank must call it.
  [[nodiscard]] Result<> share_tied_head();

 private:
  [[nodiscard]] Result<> sum_gradients(RankGradients& gradients);
  [[nodiscard]] Result<> sum_tied_head(RankGradients& gradients);
  [[nodiscard]] Result<> add_tied_head(const ParameterSet& head);
  [[nodiscard]] Result<> give_to_second_holders();
  // Collects from every rank its step, its loss, and the sums of its blocks.
  [[nodiscard]] Result<std::vector<std::vector<double>>> gather_sums(std::uint64_t step,
                                                                     double loss);
  // Checks that every rank is at the same step, and computes the common result from the sums.
  [[nodiscard]] Result<StepResult> agree(std::uint64_t step, double loss, std::uint64_t tokens);
  [[nodiscard]] Result<Error> why_not_finite(std::uint64_t step, double loss);
  void pass_barrier(std::uint64_t step, const StepResult& result);
  // Applies AdamW to all parts that this rank holds.
  void apply();
  [[nodiscard]] Result<> share_weights();
  [[nodiscard]] TimePoint deadline() const { return now() + options_.deadline; }

  const UpdateOptions options_;
  const std::vector<moe::Parameter> all_;
  RankWeights& weights_;
  std::vector<Shard> shards_;
  // For every rank: the positions of its blocks among those of the whole model.
  std::vector<std::vector<std::size_t>> blocks_of_rank_;
  std::size_t block_count_ = 0;
  Progress progress_;
};

}  // namespace wsync::training
