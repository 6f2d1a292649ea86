// The training data of a reinforcement learning run, in place of text: first right answers, then
// answers that engines generated with the weights of earlier steps. Rank 0 sends requests to the
// engines; every rank gets the same batch.
//
// A step can be run again, with rank 0 in a new process (recovery_run.h). The batch of a generated
// step is kept until the next one is generated, so a step that is run again trains on the same
// bytes. A new rank 0 has no data of earlier steps: it begins to generate with the requested step,
// it cannot compare tokens of weights that it never had, and its initial weights become the
// reference policy (rollout.kl).
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

// Returns kInvalidInput if an answer of the task does not fit into data.sequence.
[[nodiscard]] Result<rollout::Task> task_of(const config::TrainConfig& config);

// Thread: one at a time.
class StepRollouts {
 public:
  // `group` and `rank` must outlive the object; a RegroupableGroup may be regrouped between two
  // calls. `is_stopping` returns whether the run was asked to end. Returns kInvalidInput if the
  // address of an engine is malformed; other errors as task_of().
  [[nodiscard]] static Result<std::unique_ptr<StepRollouts>> create(
      const config::TrainConfig& config, training::TrainingRank& rank,
      collective::ProcessGroup& group, TrainEvents on_event, std::function<bool()> is_stopping);

  // Returns whether a step trains on generated answers.
  [[nodiscard]] bool generates(std::uint64_t step) const noexcept {
    return step > rollout_.warm_start_steps;
  }
  // Returns the micro-batches of this rank's replica, or std::nullopt if the run was asked to end.
  // All ranks must call it together, between steps. `step` is usually the next step or the same one
  // again; for any other step the engines are asked again. Before the first generated step, the
  // engines must serve the weights that it begins with, or weights of an allowed age. The other
  // ranks wait for rank 0 meanwhile. `min_epoch` (used on rank 0): the lowest epoch that this run
  // publishes; versions of older epochs belong to another run.
  //
  // Errors as RolloutPool::collect() and ProcessGroup::exchange(). If the group breaks, rank 0
  // stops to wait for answers. After an error the call can be repeated with a group that is whole;
  // answers that have arrived by then are not requested again.
  [[nodiscard]] Result<std::optional<std::vector<training::MicroBatch>>> batches(
      std::uint64_t step, std::uint32_t min_epoch = 0);

 private:
  StepRollouts(const config::TrainConfig& config, training::TrainingRank& rank,
               collective::ProcessGroup& group, TrainEvents on_event,
               std::function<bool()> is_stopping, rollout::Task task);
  [[nodiscard]] Result<std::vector<training::MicroBatch>> right_answers(std::uint64_t step) const;
  // Rank 0. Returns whether the step's batch is now kept: false if the run was asked to end.
  [[nodiscard]] Result<bool> generate(std::uint64_t step, std::uint32_t min_epoch,
                                      training::ParameterSet weights);
  [[nodiscard]] Result<std::optional<rollout::RolloutBatch>> collect(std::uint64_t step,
                                                                     std::uint32_t min_epoch);
  void notify(std::uint64_t step, const rollout::RolloutBatch& batch,
              const rollout::Agreement& agreement, double waited) const;
  // Sends the bytes of rank 0 to every rank. The deadline includes the time that rank 0 may have
  // waited for engines.
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
  // Used on rank 0:
  std::unique_ptr<rollout::RolloutPool> pool_;
  rollout::PublishedWeights published_;
  std::optional<training::ParameterSet> reference_;
  struct Asked {
    std::uint64_t step = 0;
    std::uint32_t min_epoch = 0;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  std::optional<Asked> next_;  // the pool generates for this request
  struct Newest {
    std::uint64_t step = 0;
    Bytes batches;  // of all replicas
  };
  std::optional<Newest> newest_;
};

}  // namespace wsync::cli
