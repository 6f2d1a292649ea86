// What a run of reinforcement learning trains on, in place of text: right answers first, then what
// engines have generated with the weights of earlier steps. Rank 0 asks the engines; every rank
// gets the same batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "deploy/cli/train_events.h"
#include "shared/collective/process_group.h"
#include "shared/config/train_config.h"
#include "trainer_side/rollout/agreement.h"
#include "trainer_side/rollout/rollout_pool.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::cli {

// kInvalidInput: an answer of the task does not fit into data.sequence.
[[nodiscard]] Result<rollout::Task> task_of(const config::TrainConfig& config);

// Thread: one at a time.
class StepRollouts {
 public:
  // `group` and `rank` outlive it. `is_stopping`: the run was asked to end. kInvalidInput: an
  // engine's address is none, and as task_of().
  [[nodiscard]] static Result<std::unique_ptr<StepRollouts>> create(
      const config::TrainConfig& config, training::TrainingRank& rank,
      collective::ProcessGroup& group, TrainEvents on_event, std::function<bool()> is_stopping);

  // Whether a step trains on what was generated.
  [[nodiscard]] bool generates(std::uint64_t step) const noexcept {
    return step > rollout_.warm_start_steps;
  }
  // The micro-batches of this rank's replica, in all ranks together and between steps; steps follow
  // each other. Nothing: the run was asked to end. Before the first that generates the engines
  // serve the weights it begins with, or some that they keep. Errors as RolloutPool::harvest() and
  // ProcessGroup::exchange().
  [[nodiscard]] Result<std::optional<std::vector<training::MicroBatch>>> batches(
      std::uint64_t step);

 private:
  StepRollouts(const config::TrainConfig& config, training::TrainingRank& rank,
               collective::ProcessGroup& group, TrainEvents on_event,
               std::function<bool()> is_stopping, rollout::Task task);
  [[nodiscard]] Result<std::vector<training::MicroBatch>> right_answers(std::uint64_t step) const;
  // Of rank 0: empty when the run was asked to end.
  [[nodiscard]] Result<Bytes> generated(std::uint64_t step, training::ParameterSet weights);
  [[nodiscard]] Result<std::optional<rollout::Harvest>> harvest(std::uint64_t step);
  void refer(std::vector<training::MicroBatch>& batches) const;
  void tell(std::uint64_t step, const rollout::Harvest& harvest,
            const rollout::Agreement& agreement, double waited) const;
  // What rank 0 has, on every rank.
  [[nodiscard]] Result<Bytes> share(Bytes bytes) const;
  [[nodiscard]] std::vector<training::MicroBatch> own(std::vector<training::MicroBatch> all) const;

  const config::RolloutConfig rollout_;
  const training::PolicyLoss loss_;
  const rollout::BatchShape shape_;
  const bool versions_count_;
  training::TrainingRank& rank_;
  collective::ProcessGroup& group_;
  const TrainEvents on_event_;
  const std::function<bool()> is_stopping_;
  const rollout::Task task_;
  // Of rank 0.
  std::unique_ptr<rollout::RolloutPool> pool_;
  rollout::PublishedWeights published_;
  std::optional<training::ParameterSet> reference_;
  bool begun_ = false;
};

}  // namespace wsync::cli
