// The options of the state machine that follow from a sidecar's configuration.
#pragma once

#include "inference_side/staging/sidecar.h"
#include "shared/config/sidecar_config.h"

namespace wsync::agent {

// `transports` is left empty, because its addresses are known only when the relays listen.
[[nodiscard]] staging::SidecarOptions sidecar_options(const config::SidecarConfig& config);

}  // namespace wsync::agent
