// One rank of a training run, and the reference run in one process.
//
// SIGINT or SIGTERM to a rank ends the run normally after the current step, and saves the state if
// the run saves any. A second signal ends the process immediately with status 130.
#pragma once

#include <cstdint>

#include "shared/base/error.h"
#include "shared/config/train_config.h"
#include "trainer_side/run/events.h"

namespace wsync::cli {

struct RankStart {
  config::TrainConfig config;
  std::uint32_t rank = 0;
  int segment = -1;  // made by the launcher, owned by the rank. -1: uses config.ranks.rendezvous
  int control = -1;  // the launcher sends the next segment here; -1: there is none
  std::uint32_t generation = 0;  // above 0: this process replaces a lost one
  std::uint64_t told = 0;        // the last step whose end was reported to the launcher
  TrainEvents on_event;          // used on rank 0
};
// Trains until the last step. An error is sent to the other ranks, which fail too.
[[nodiscard]] Result<> run_rank(const RankStart& start);

// Does the work of all ranks with plain loops in this process (training/reference_trainer.h). It
// does not publish and does not draw.
[[nodiscard]] Result<> run_sequential(const config::TrainConfig& config,
                                      const TrainEvents& on_event);

}  // namespace wsync::cli
