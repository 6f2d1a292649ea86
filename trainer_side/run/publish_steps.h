// Publishes the weights of a trainer's rank, in bfloat16, while the next step is computed. The
// weights are read until the update of that step, which waits for the snapshot. Training does not
// wait for an absent fleet: if nobody has begun to read a publish in time, it is abandoned and
// reported as failed.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "shared/config/train_config.h"
#include "trainer_side/plugin/trainer.h"
#include "trainer_side/run/events.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::cli {

// Thread: one at a time.
class StepPublisher {
 public:
  // Returns whether a rank has weights to publish. One of the ranks with the same weights does.
  [[nodiscard]] static bool publishes(const training::TrainingOptions& options,
                                      const training::Place& place);
  // Opens rank 0's addresses; errors as plugin::Trainer::start(). `rank` and its weights must
  // outlive the publisher. `is_stopping` returns whether the run was asked to end. `incarnation` is
  // the number of times this rank's process was replaced. A process with a higher incarnation
  // replaces one with a lower incarnation, which may hang instead of having ended: a new rank 0
  // takes over the fleet and the addresses, and for any other rank, rank 0 accepts the new process
  // in its place.
  [[nodiscard]] static Result<std::unique_ptr<StepPublisher>> create(
      const config::PublishConfig& config, training::TrainingRank& rank, TrainEvents on_event,
      std::function<bool()> is_stopping, std::uint32_t incarnation = 0);

  // Begins to publish the weights after this step. A failure is reported as an event of rank 0 or
  // as a warning, and training continues. All ranks may publish a step again if
  // must_publish_again() returns true. The weights must be the same, which is checked. Each publish
  // is an event.
  void publish(std::uint64_t step);
  // Rank 0, after wait_snapshotted(): returns whether all ranks should call publish(step) now,
  // because there is no version of this step: its newest publish failed before all shards were
  // gathered, or this process has never published it. Returns false if the version exists, whatever
  // its end, if the publish is still running, for steps before the newest one, and after end_all(),
  // unless the newest publish failed because a rank was lost. After true, this rank accepts reports
  // of the step, so the ranks may publish in any order. On other ranks: false.
  [[nodiscard]] bool must_publish_again(std::uint64_t step);
  // Waits until the weights of the newest publish may change. Rank 0 waits for a snapshot to begin
  // until its wait limit, or until the run is asked to end. If the ranks' group is broken, it does
  // not wait for missing reports, which ends the publish (kPeerLost). Reports of a lost rank that
  // have arrived stay valid.
  void wait_snapshotted();
  // Reports the publishes that have ended.
  void notify_ended();
  // Rank 0: waits until the newest publish has ended, or the run is asked to end. The other ranks
  // do not wait. Returns kRefused or kPartial with the reason if no or not every engine serves it,
  // kDeadline, or the error that broke the ranks' group.
  [[nodiscard]] Result<> wait_served(std::chrono::milliseconds wait_limit);
  // Epoch of the newest committed version that was reported; 0 if there is none.
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }
  // Waits until every publish has ended, and reports it. A later publish() starts a new trainer. If
  // the run is asked to end, waits a few seconds more; rank 0 then reports the remaining publishes
  // as failed.
  void end_all();

 private:
  struct Running {
    std::uint64_t id = 0;
    std::uint64_t step = 0;
  };
  StepPublisher(const config::PublishConfig& config, training::TrainingRank& rank,
                TrainEvents on_event, std::function<bool()> is_stopping);
  [[nodiscard]] Result<> start();
  // Waits briefly. Returns whether the publish has reached the state or has ended.
  [[nodiscard]] bool wait_a_little(const Running& running, control::PublishState state) const;
  void notify(const Running& running, const plugin::PublishView& view);
  // Rank 0: if the group is broken, the publish no longer waits for missing reports.
  void do_without_the_lost(const Running& running);
  [[nodiscard]] plugin::RankTensors describe() const;

  const config::PublishConfig config_;
  training::TrainingRank& rank_;
  const TrainEvents on_event_;
  const std::function<bool()> is_stopping_;
  plugin::TrainerOptions options_;
  plugin::RankTensors tensors_;
  std::deque<Running> running_;
  std::optional<Running> newest_;
  bool snapshotted_ = true;
  bool is_lost_ = false;  // end_all() found that the newest publish failed with the group
  std::uint32_t epoch_ = 0;
  std::chrono::milliseconds wait_limit_;
  std::unique_ptr<plugin::Trainer> trainer_;
};

}  // namespace wsync::cli
