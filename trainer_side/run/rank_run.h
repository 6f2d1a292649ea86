// One rank of a training run, and the run in one process that all others are held to.
//
// SIGINT and SIGTERM of a rank: the run ends in order after the step that runs, with its state
// saved if it saves any; a second one ends the process at once, with status 130.
#pragma once

#include <cstdint>

#include "shared/base/error.h"
#include "shared/config/train_config.h"
#include "trainer_side/run/events.h"

namespace wsync::cli {

struct RankStart {
  config::TrainConfig config;
  std::uint32_t rank = 0;
  int segment = -1;  // that the launcher has made; taken over. -1: config.ranks.rendezvous
  int control = -1;  // where the launcher hands over the next segment; -1: there is none
  std::uint32_t generation = 0;  // above 0: this process replaces one that was lost
  std::uint64_t told = 0;        // the last step whose end the launcher knows
  TrainEvents on_event;          // of rank 0
};
// Trains until the last step. An error is told to the other ranks, which fail as well.
[[nodiscard]] Result<> run_rank(const RankStart& start);

// All ranks' work with plain loops in this process (training/reference_trainer.h). It publishes
// nothing, and draws nothing.
[[nodiscard]] Result<> run_sequential(const config::TrainConfig& config,
                                      const TrainEvents& on_event);

}  // namespace wsync::cli
