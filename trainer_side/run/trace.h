// The measured steps of a training run: a Chrome trace of the latest steps, and a picture of the
// last one, drawn with the same code as planned schedules.
#pragma once

#include <deque>
#include <string>

#include "shared/base/error.h"
#include "shared/config/train_config.h"
#include "shared/process_group/process_group.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::cli {

// Thread: one at a time.
class StepTraces {
 public:
  StepTraces(const config::TrainConfig& config, const training::TrainingRank& rank)
      : config_(config), rank_(rank) {}

  // Keeps the times of a step, if anything is to be written. Only the latest few steps are kept.
  void keep(std::uint64_t step, const training::TrainingRank::Step& measured);
  // Drops all steps, because a new rank has none of them.
  void clear() { steps_.clear(); }
  // Gathers the steps on rank 0, which writes them. Every rank must call it, after the same steps.
  // Errors as ProcessGroup::exchange() and trace::write_text_file().
  [[nodiscard]] Result<> write(collective::ProcessGroup* group) const;

 private:
  struct Kept {
    std::uint64_t step = 0;
    // Begin and end of each operation; then those of the step, and when its gradients were
    // complete.
    std::vector<TimePoint> times;
  };
  // For each rank, the times of each kept step.
  using AllTimes = std::vector<std::vector<std::vector<TimePoint>>>;
  [[nodiscard]] Result<AllTimes> gather(collective::ProcessGroup* group) const;
  [[nodiscard]] Result<> write_trace(const AllTimes& times) const;
  [[nodiscard]] Result<> write_picture(const AllTimes& times) const;

  const config::TrainConfig& config_;
  const training::TrainingRank& rank_;
  std::deque<Kept> steps_;
};

}  // namespace wsync::cli
