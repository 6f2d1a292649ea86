// TrainingRank: one rank of a trainer. It plans the schedule, runs each step's program on its
// lanes, and updates its parameters with the other ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shared/collective/process_group.h"
#include "trainer_side/schedule/order.h"
#include "trainer_side/training/pipeline.h"
#include "trainer_side/training/update.h"

namespace wsync::training {

struct TrainingOptions {
  moe::ModelSpec spec;
  ParallelSizes sizes;
  schedule::ScheduleOptions schedule;  // its shape is that of sizes
  bool offload = false;
  OptimizerOptions optimizer;
  std::size_t sequences = 1;                   // of a micro-batch
  std::size_t sequence = 1;                    // tokens of each
  std::chrono::milliseconds deadline{60'000};  // of one exchange between ranks
  // What else all ranks must have in common: compared at the start, and nothing else.
  std::string run;
  [[nodiscard]] std::uint64_t tokens_of_step() const noexcept;
};
// Checks that all of these go together: plan_training() succeeds. kInvalidInput names sizes and
// why.
[[nodiscard]] Result<> check_training(const TrainingOptions& options);
// The program that the pipeline ranks run in each step. Errors as check_training().
[[nodiscard]] Result<schedule::Program> plan_training(const TrainingOptions& options);

// Thread: one at a time.
class TrainingRank {
 public:
  struct Step {
    StepResult result;
    TimePoint begin{};
    std::vector<Measured> operations;  // of the rank's program
    TimePoint computed{};              // gradients are there
    TimePoint end{};                   // parameters are those of the next step
  };

  // Its weights are zero until they are set. `group` is borrowed, of sizes.ranks() ranks; null for
  // one. Waits for all ranks: kRefused when one of them uses other kernels of the BLAS library or
  // other options, and would not agree to the bit; kResourceExhausted when there is no memory.
  [[nodiscard]] static Result<std::unique_ptr<TrainingRank>> create(
      const TrainingOptions& options, collective::ProcessGroup* group);
  TrainingRank(const TrainingRank&) = delete;
  TrainingRank& operator=(const TrainingRank&) = delete;

  // Step `step`, counted from 1, on the micro-batches of this rank's replica. `before_update` is
  // called when the gradients are there and before any weight changes; its error breaks the group.
  // Errors as Update::run().
  [[nodiscard]] Result<Step> run_step(std::uint64_t step, const std::vector<MicroBatch>& batches,
                                      const std::function<Result<>()>& before_update = {});

  [[nodiscard]] const TrainingOptions& options() const noexcept { return options_; }
  [[nodiscard]] const Place& place() const noexcept { return place_; }
  [[nodiscard]] const schedule::Program& program() const noexcept { return *program_; }
  [[nodiscard]] const Pipeline& pipeline() const noexcept { return *pipeline_; }
  // After weights were set, share_tied_head() of the update.
  [[nodiscard]] RankWeights& weights() noexcept { return weights_; }
  [[nodiscard]] Update& update() noexcept { return *update_; }

 private:
  TrainingRank(const TrainingOptions& options, const Place& place,
               std::shared_ptr<const schedule::Program> program, collective::ProcessGroup* group);
  const TrainingOptions options_;
  const Place place_;
  const std::shared_ptr<const schedule::Program> program_;
  collective::ProcessGroup* const group_;
  RankWeights weights_;
  RankGradients gradients_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Update> update_;
};

}  // namespace wsync::training
