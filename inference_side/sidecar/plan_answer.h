// What a sidecar answers to `wsync plan`: would its engines take a layout? Changes nothing.
#pragma once

#include "inference_side/sidecar/engine_hub.h"
#include "inference_side/staging/store.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/messages.h"

namespace wsync::agent {

// The same checks as an Announce, and the settings that its memory follows from. A layout that
// cannot be read is the answer's `failure`. Thread: the loop's.
[[nodiscard]] control::SidecarPlan answer_plan(const control::Plan& plan, const EngineHub& hub,
                                               const staging::Store& store,
                                               const config::SidecarConfig& config);

}  // namespace wsync::agent
