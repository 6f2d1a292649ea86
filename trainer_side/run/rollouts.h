// What a run of reinforcement learning trains on, in place of text: right answers first, then what
// engines have generated with the weights of earlier steps. Rank 0 asks the engines; every rank
// gets the same batch.
//
// A step can be run again, and rank 0 can be a new process by then (recovery_run.h). The batch of a
// step that has been generated is kept until the next one is, so a step that is run again trains on
// the same bytes. A new rank 0 knows of no step before: it begins to generate with the step that it
// is asked for, cannot compare tokens of weights that it has never had, and takes the weights that
// it begins with as those to stay near (rollout.kl).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shared/config/train_config.h"
#include "shared/process_group/process_group.h"
#include "trainer_side/rollout/agreement.h"
#include "trainer_side/rollout/rollout_pool.h"
#include "trainer_side/run/events.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::cli {

// kInvalidInput: an answer of the task does not fit into data.sequence.
[[nodiscard]] Result<rollout::Task> task_of(const config::TrainConfig& config);

// Thread: one at a time.
class StepRollouts {
 public:
  // `group` and `rank` outlive it; a RegroupableGroup may be regrouped between two calls.
  // `is_stopping`: the run was asked to end. kInvalidInput: an engine's address is none, and as
  // task_of().
  [[nodiscard]] static Result<std::unique_ptr<StepRollouts>> create(
      const config::TrainConfig& config, training::TrainingRank& rank,
      collective::ProcessGroup& group, TrainEvents on_event, std::function<bool()> is_stopping);

  // Whether a step trains on what was generated.
  [[nodiscard]] bool generates(std::uint64_t step) const noexcept {
    return step > rollout_.warm_start_steps;
  }
  // The micro-batches of this rank's replica, in all ranks together and between steps. `step`
  // follows the one before, is the same once more, or any other: then the engines are asked anew.
  // Nothing: the run was asked to end. Before the first that generates the engines serve the
  // weights it begins with, or some that they keep; the other ranks wait for rank 0 meanwhile.
  // `least_epoch`, of rank 0: of the versions that this run publishes; those of an older epoch are
  // of another run.
  //
  // Errors as RolloutPool::harvest() and ProcessGroup::exchange(); a group that breaks ends rank
  // 0's wait for answers too. After any error the call can be made again, in a group that is whole:
  // answers that have come by then are not asked for a second time.
  [[nodiscard]] Result<std::optional<std::vector<training::MicroBatch>>> batches(
      std::uint64_t step, std::uint32_t min_epoch = 0);

 private:
  StepRollouts(const config::TrainConfig& config, training::TrainingRank& rank,
               collective::ProcessGroup& group, TrainEvents on_event,
               std::function<bool()> is_stopping, rollout::Task task);
  [[nodiscard]] Result<std::vector<training::MicroBatch>> right_answers(std::uint64_t step) const;
  // Of rank 0. Whether the step's batch is kept now: not when the run was asked to end.
  [[nodiscard]] Result<bool> generate(std::uint64_t step, std::uint32_t min_epoch,
                                      training::ParameterSet weights);
  [[nodiscard]] Result<std::optional<rollout::RolloutBatch>> collect(std::uint64_t step,
                                                                     std::uint32_t min_epoch);
  void notify(std::uint64_t step, const rollout::RolloutBatch& batch,
              const rollout::Agreement& agreement, double waited) const;
  // What rank 0 has, on every rank, however long it has waited for engines before it comes to this.
  [[nodiscard]] Result<Bytes> share(Bytes bytes) const;
  [[nodiscard]] std::vector<training::MicroBatch> own(std::vector<training::MicroBatch> all) const;

  const config::RolloutConfig rollout_;
  const training::PolicyLoss loss_;
  const rollout::BatchShape shape_;
  training::TrainingRank& rank_;
  collective::ProcessGroup& group_;
  const TrainEvents on_event_;
  const std::function<bool()> is_stopping_;
  const rollout::Task task_;
  // Of rank 0.
  std::unique_ptr<rollout::RolloutPool> pool_;
  rollout::PublishedWeights published_;
  std::optional<training::ParameterSet> reference_;
  struct Asked {
    std::uint64_t step = 0;
    std::uint32_t min_epoch = 0;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  std::optional<Asked> next_;  // what the pool generates for
  struct Newest {
    std::uint64_t step = 0;
    Bytes batches;  // of all replicas
  };
  std::optional<Newest> newest_;
};

}  // namespace wsync::cli
