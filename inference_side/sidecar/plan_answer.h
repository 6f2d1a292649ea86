// The answer of a sidecar to `wsync plan`: whether its engines and its memory can take a layout.
// Answering changes nothing.
#pragma once

#include "inference_side/sidecar/engine_hub.h"
#include "inference_side/staging/store.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/messages.h"

namespace wsync::agent {

// Makes the same checks as for an Announce, and adds the settings that determine the memory use.
// The answer's `failure` is set if the layout cannot be read or the GPUs do not answer. Thread: the
// loop's.
[[nodiscard]] control::SidecarPlan answer_plan(const control::Plan& plan, const EngineHub& hub,
                                               const staging::Store& store,
                                               const config::SidecarConfig& config);

}  // namespace wsync::agent
