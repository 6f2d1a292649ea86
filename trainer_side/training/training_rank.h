// TrainingRank: one rank of a trainer. It plans the schedule, runs each step's program on its
// lanes, and updates its parameters with the other ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/process_group/process_group.h"
#include "trainer_side/schedule/order.h"
#include "trainer_side/training/pipeline.h"
#include "trainer_side/training/recovery.h"
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
  bool second_holders = false;                 // what recover() needs (recovery_run.h)
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

  enum class Start : std::uint8_t {
    kTogether,     // with all other ranks
    kReplacement,  // in a lost rank's place, among ranks that have begun: recover() is next
  };
  // Its weights are zero until they are set. `group` is borrowed, of sizes.ranks() ranks; null for
  // one. Together with the others, waits for compare_options(). kResourceExhausted when there is no
  // memory.
  [[nodiscard]] static Result<std::unique_ptr<TrainingRank>> create(const TrainingOptions& options,
                                                                    collective::ProcessGroup* group,
                                                                    Start start = Start::kTogether);
  TrainingRank(const TrainingRank&) = delete;
  TrainingRank& operator=(const TrainingRank&) = delete;

  // Step `step`, counted from 1, on the micro-batches of this rank's replica. `before_update` is
  // called when the gradients are there and before any weight changes; its error breaks the group.
  // Errors as Update::run().
  [[nodiscard]] Result<Step> run_step(std::uint64_t step, const std::vector<MicroBatch>& batches,
                                      const std::function<Result<>()>& before_update = {});

  // Waits for all ranks: kRefused when one of them computes with another C library or another
  // kind of processor (moe::arithmetic()) or has other options, and would not agree to the bit.
  // Other errors as ProcessGroup::exchange().
  [[nodiscard]] Result<> compare_options();

  // That of all ranks; null for one.
  [[nodiscard]] collective::ProcessGroup* group() const noexcept { return group_; }
  // Where this rank is. Empty until begin_at() or its first step, and from set_empty() on.
  [[nodiscard]] const Tag& tag() const noexcept { return tag_; }
  // `told` is called with each tag that differs from the one before, by the thread that changes it:
  // that of run_step(), begin_at() or recover().
  void on_phase(std::function<void(const Tag&)> told) { on_phase_ = std::move(told); }
  // Weights and the optimizer's state have been set: they are those that `step` begins with, and
  // the step before came to `before` where that is known. What is left of another step is dropped.
  void begin_at(std::uint64_t step, const std::optional<StepResult>& before = {});
  // Weights and state are about to be set from elsewhere: until begin_at() they are of no step. The
  // optimizer's state is zero, as at the start of a run.
  void set_empty();

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
  void set_tag(const Tag& tag);
  const TrainingOptions options_;
  const Place place_;
  const std::shared_ptr<const schedule::Program> program_;
  collective::ProcessGroup* const group_;
  RankWeights weights_;
  RankGradients gradients_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Update> update_;
  Tag tag_;
  std::function<void(const Tag&)> on_phase_;
};

}  // namespace wsync::training
