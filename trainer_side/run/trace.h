// The steps of a training run as they were measured: a Chrome trace of the latest ones, and a
// picture of the last one, drawn by the code that draws planned schedules.
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

  // Remembers a step; the latest few, if anything is to be written.
  void keep(std::uint64_t step, const training::TrainingRank::Step& measured);
  // Forgets all steps: a rank that is new has none of them.
  void clear() { steps_.clear(); }
  // Gathers them on rank 0, which writes. Every rank calls it, after the same steps. Errors as
  // ProcessGroup::exchange() and trace::write_text_file().
  [[nodiscard]] Result<> write(collective::ProcessGroup* group) const;

 private:
  struct Kept {
    std::uint64_t step = 0;
    // Begin and end of each operation, then of the step itself and when its gradients were there.
    std::vector<TimePoint> times;
  };
  // Of all ranks, the times of each kept step.
  using AllTimes = std::vector<std::vector<std::vector<TimePoint>>>;
  [[nodiscard]] Result<AllTimes> gather(collective::ProcessGroup* group) const;
  [[nodiscard]] Result<> write_trace(const AllTimes& times) const;
  [[nodiscard]] Result<> write_picture(const AllTimes& times) const;

  const config::TrainConfig& config_;
  const training::TrainingRank& rank_;
  std::deque<Kept> steps_;
};

}  // namespace wsync::cli
