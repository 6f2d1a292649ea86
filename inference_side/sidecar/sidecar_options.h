// What a sidecar's configuration means for its state machine.
#pragma once

#include "inference_side/staging/receive_round.h"
#include "shared/config/sidecar_config.h"

namespace wsync::agent {

// Its data_address is left empty: it is known when the relay listens.
[[nodiscard]] staging::SidecarOptions sidecar_options(const config::SidecarConfig& config);

}  // namespace wsync::agent
