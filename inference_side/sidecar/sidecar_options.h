// The options of the state machine that follow from a sidecar's configuration.
#pragma once

#include "inference_side/staging/sidecar.h"
#include "shared/config/sidecar_config.h"

namespace wsync::agent {

// data_address is left empty, because it is known only when the relay listens.
[[nodiscard]] staging::SidecarOptions sidecar_options(const config::SidecarConfig& config);

}  // namespace wsync::agent
