// Starts the ranks of a training run on this host, each as its own process, and monitors them. With
// recovery, a rank that is killed or stops its heartbeat is replaced, and the other ranks get a new
// group. Without recovery, a loss ends all ranks.
#pragma once

#include <string>
#include <vector>

#include "shared/command/context.h"
#include "shared/config/train_config.h"

namespace wsync::cli {

// `arguments`: the arguments of `wsync train` for each rank. `prints_events`: as TrainReport.
// Returns when all ranks have ended. Returns kPeerLost, with the rank, if a rank was lost and could
// not be replaced (no recovery, no attempts left, nothing saved). Other errors are those of the
// rank that failed first.
[[nodiscard]] Result<Outcome> launch_training(const config::TrainConfig& config,
                                              const std::vector<std::string>& arguments,
                                              bool prints_events);

}  // namespace wsync::cli
