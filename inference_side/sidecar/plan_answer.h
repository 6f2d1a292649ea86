// The answer of a sidecar to `wsync plan`: whether its engines and its memory would take a layout.
// Nothing is changed.
#pragma once

#include "inference_side/sidecar/engine_hub.h"
#include "inference_side/staging/store.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/messages.h"

namespace wsync::agent {

// Makes the same checks as an Announce, and adds the settings that the memory use follows from. The
// answer's `failure` says when the layout cannot be read or the GPUs do not answer. Thread: the
// loop's.
[[nodiscard]] control::SidecarPlan answer_plan(const control::Plan& plan, const EngineHub& hub,
                                               const staging::Store& store,
                                               const config::SidecarConfig& config);

}  // namespace wsync::agent
