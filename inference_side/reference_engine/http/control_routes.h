// Routes that observe an engine (health, readiness, weights, counters) and routes that pause it.
#pragma once

#include <cstdint>
#include <vector>

#include "inference_side/reference_engine/generation/service.h"
#include "inference_side/reference_engine/http/replies.h"

namespace wsync::engine::http {

inline constexpr std::int64_t kPauseSeconds = 60;  // default if the client gives no timeout
inline constexpr std::int64_t kMaxPauseSeconds = 600;

// `service` is borrowed.
[[nodiscard]] std::vector<Route> control_routes(generation::GenerationService& service);

}  // namespace wsync::engine::http
