// Publishes the weights of a trainer's rank, in bfloat16, while the next step is computed: they are
// read until the update of that step, which waits for it. Training does not wait for a fleet that
// is not there: a publish that nobody has begun to read is given up, and told as failed.
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
  // Whether a rank has weights to publish: one of the ranks that have the same ones does.
  [[nodiscard]] static bool publishes(const training::TrainingOptions& options,
                                      const training::Place& place);
  // Opens rank 0's addresses; errors as plugin::Trainer::start(). `rank` and its weights outlive
  // it. `is_stopping`: the run was asked to end. `incarnation`: how often this rank's process was
  // replaced; a higher one takes the place of a lower one, which may still be there and stand
  // still: rank 0 takes the fleet and its addresses over, another rank is taken by rank 0 in its
  // stead.
  [[nodiscard]] static Result<std::unique_ptr<StepPublisher>> create(
      const config::PublishConfig& config, training::TrainingRank& rank, TrainEvents on_event,
      std::function<bool()> is_stopping, std::uint32_t incarnation = 0);

  // Begins to publish the weights as they are after this step. What fails is told as an event of
  // rank 0, or as a warning; training goes on. A step may be published once more, by all ranks,
  // when must_publish_again() says so: with the same weights, which is checked. Each of them is an
  // event.
  void publish(std::uint64_t step);
  // Rank 0, after wait_snapshotted(): whether all ranks should call publish(step) now, because no
  // version has come of this step: its newest publish has failed before all shards were gathered,
  // or this process has never published it. False for a version that exists, whatever its end, for
  // a publish that goes on, for steps before one of them, and after end_all() unless the loss of a
  // rank has ended the newest one. When it is true this
  // rank takes reports of the step from now on, so the ranks may publish in any order. The other
  // ranks: false.
  [[nodiscard]] bool must_publish_again(std::uint64_t step);
  // Waits until the weights of the newest publish may change. Rank 0 waits for a snapshot to begin
  // for as long as its patience lasts, or until the run is asked to end; and when the ranks' group
  // is broken not for what they have not reported, which ends the publish (peer lost). What a lost
  // rank has reported stays good.
  void wait_snapshotted();
  // Tells how publishes have ended.
  void notify_ended();
  // Rank 0: waits until the newest publish has ended, or the run is asked to end. The others do not
  // wait. kRefused with the reason: engines do not serve it; kDeadline; what broke the ranks'
  // group.
  [[nodiscard]] Result<> wait_served(std::chrono::milliseconds wait_limit);
  // Of the newest version that was committed, as far as it has been told; 0 before one was.
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }
  // Waits until every publish has ended, and tells it; a later publish() begins anew. A run that is
  // asked to end waits for them a few seconds more; what has not ended by then is told as failed on
  // rank 0.
  void end_all();

 private:
  struct Running {
    std::uint64_t id = 0;
    std::uint64_t step = 0;
  };
  StepPublisher(const config::PublishConfig& config, training::TrainingRank& rank,
                TrainEvents on_event, std::function<bool()> is_stopping);
  [[nodiscard]] Result<> start();
  // Whether the publish has come that far, or has ended.
  [[nodiscard]] bool wait_a_little(const Running& running, control::PublishState state) const;
  void notify(const Running& running, const plugin::PublishView& view);
  // Rank 0: when the group is broken, the publish does not wait for what was not reported.
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
  bool is_lost_ = false;  // end_all() has found that the newest publish failed with the group
  std::uint32_t epoch_ = 0;
  std::chrono::milliseconds wait_limit_;
  std::unique_ptr<plugin::Trainer> trainer_;
};

}  // namespace wsync::cli
