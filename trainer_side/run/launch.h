// Starts the ranks of a training run on this host, each a process of its own, and watches them: one
// that is killed or gives no sign of life is replaced, and the others are given a new group; or it
// ends them, where there is no recovery.
#pragma once

#include <string>
#include <vector>

#include "shared/command/context.h"
#include "shared/config/train_config.h"

namespace wsync::cli {

// `arguments`: of `wsync train`, as each rank gets them. `prints_events`: as TrainReport. Returns
// when all ranks have ended. kPeerLost: a rank was lost and could not be replaced (no recovery,
// attempts used up, nothing saved); each names it. Other errors are those of the rank that failed
// first.
[[nodiscard]] Result<Outcome> launch_training(const config::TrainConfig& config,
                                              const std::vector<std::string>& arguments,
                                              bool prints_events);

}  // namespace wsync::cli
