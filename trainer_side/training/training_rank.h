// TrainingRank: one rank of a trainer. It plans the schedule, runs the program of each step on its
// lanes, and updates its parameters together with the other ranks.
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
  schedule::ScheduleOptions schedule;  // its shape follows from `sizes`
  bool offload = false;
  OptimizerOptions optimizer;
  std::size_t sequences = 1;                   // sequences of a micro-batch
  std::size_t sequence = 1;                    // tokens of a sequence
  std::chrono::milliseconds deadline{60'000};  // deadline of one exchange between ranks
  bool second_holders = false;                 // needed for recover() (recovery_run.h)
  // Any other text that must be the same on all ranks. It is only compared at the start.
  std::string run;
  [[nodiscard]] std::uint64_t tokens_of_step() const noexcept;
};
// Checks that the options are compatible, which means that plan_training() succeeds. Returns
// kInvalidInput with the sizes and the reason.
[[nodiscard]] Result<> check_training(const TrainingOptions& options);
// Returns the program that the pipeline ranks run in each step. Errors as check_training().
[[nodiscard]] Result<schedule::Program> plan_training(const TrainingOptions& options);

// Thread: one at a time.
class TrainingRank {
 public:
  struct Step {
    StepResult result;
    TimePoint begin{};
    std::vector<Measured> operations;  // of the operations of the rank's program
    TimePoint computed{};              // when the gradients were complete
    TimePoint end{};                   // when the parameters of the next step were complete
  };

  enum class Start : std::uint8_t {
    kTogether,     // begins with all other ranks
    kReplacement,  // replaces a lost rank while the others run; recover() must follow
  };
  // Creates a rank whose weights are zero until they are set. `group` is borrowed and has
  // sizes.ranks() ranks; null for one rank. With kTogether, waits for compare_options(). Returns
  // kResourceExhausted if there is not enough memory.
  [[nodiscard]] static Result<std::unique_ptr<TrainingRank>> create(const TrainingOptions& options,
                                                                    collective::ProcessGroup* group,
                                                                    Start start = Start::kTogether);
  TrainingRank(const TrainingRank&) = delete;
  TrainingRank& operator=(const TrainingRank&) = delete;

  // Runs step `step`, counted from 1, on the micro-batches of this rank's replica. `before_update`
  // is called when the gradients are complete and before any weight changes. An error of it breaks
  // the group. Errors as Update::run().
  [[nodiscard]] Result<Step> run_step(std::uint64_t step, const std::vector<MicroBatch>& batches,
                                      const std::function<Result<>()>& before_update = {});

  // Waits for all ranks and compares their options. Returns kRefused if a rank has another C
  // library, another kind of processor (moe::arithmetic()) or other options, because its results
  // would have other bits. Other errors as ProcessGroup::exchange().
  [[nodiscard]] Result<> compare_options();

  // The group of all ranks; null for one rank.
  [[nodiscard]] collective::ProcessGroup* group() const noexcept { return group_; }
  // The state of this rank. Empty until begin_at() or the first step, and again after set_empty().
  [[nodiscard]] const Tag& tag() const noexcept { return tag_; }
  // `told` is called with each tag that differs from the previous one, on the thread that changes
  // it: the one of run_step(), begin_at() or recover().
  void on_phase(std::function<void(const Tag&)> told) { on_phase_ = std::move(told); }
  // Call after weights and optimizer's state were set to those of the beginning of `step`. `before`
  // is the result of the previous step, if known. Data of any other step is dropped.
  void begin_at(std::uint64_t step, const std::optional<StepResult>& before = {});
  // Call before weights and state are set: until begin_at() they belong to no step. Sets the
  // optimizer's state to zero, as at the start of a run.
  void set_empty();

  [[nodiscard]] const TrainingOptions& options() const noexcept { return options_; }
  [[nodiscard]] const Place& place() const noexcept { return place_; }
  [[nodiscard]] const schedule::Program& program() const noexcept { return *program_; }
  [[nodiscard]] const Pipeline& pipeline() const noexcept { return *pipeline_; }
  // After weights were set, call share_tied_head() of the update.
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
