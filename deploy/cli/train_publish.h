// Publishes the weights of a trainer's rank, in bfloat16, while the next step is computed: they are
// read until the update of that step, which waits for it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "deploy/cli/train_events.h"
#include "shared/config/train_config.h"
#include "trainer_side/plugin/trainer.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::cli {

// Thread: one at a time.
class StepPublisher {
 public:
  // Whether a rank has weights to publish: one of the ranks that have the same ones does.
  [[nodiscard]] static bool publishes(const training::TrainingOptions& options,
                                      const training::Place& place);
  // Opens rank 0's addresses; errors as plugin::Trainer::start(). `rank` and its weights outlive
  // it.
  [[nodiscard]] static Result<std::unique_ptr<StepPublisher>> create(
      const config::PublishConfig& config, training::TrainingRank& rank, TrainEvents on_event);

  // Begins to publish the weights as they are after this step, if it is one of those to publish.
  // What fails is told as an event of rank 0, or as a warning; training goes on.
  void publish(std::uint64_t step);
  // Waits until the weights of the newest publish may change.
  void wait_snapshotted();
  // Tells how publishes have ended; with `all`, after waiting until every one has.
  void tell_ended(bool all);

 private:
  struct Running {
    std::uint64_t id = 0;
    std::uint64_t step = 0;
  };
  StepPublisher(const config::PublishConfig& config, training::TrainingRank& rank,
                TrainEvents on_event);
  void tell(const Running& running, const plugin::PublishView& view) const;
  [[nodiscard]] plugin::RankTensors describe() const;

  const config::PublishConfig config_;
  training::TrainingRank& rank_;
  const TrainEvents on_event_;
  plugin::RankTensors tensors_;
  std::deque<Running> running_;
  bool snapshotted_ = true;
  std::unique_ptr<plugin::Trainer> trainer_;
};

}  // namespace wsync::cli
