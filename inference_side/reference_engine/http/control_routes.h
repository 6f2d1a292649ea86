// The routes that look at an engine or steer it.
#pragma once

#include <cstdint>
#include <vector>

#include "inference_side/reference_engine/http/completions.h"

namespace wsync::engine::http {

inline constexpr std::int64_t kPauseSeconds = 60;  // timeout_s of a pause that names none
inline constexpr std::int64_t kMaxPauseSeconds = 600;
inline constexpr std::size_t kMaxLabelBytes = 256;  // of update_weight_version
inline constexpr std::size_t kMaxAbortIds = 4096;   // of abort_requests

// `service` and `completions` are borrowed by the routes.
[[nodiscard]] std::vector<Route> control_routes(generation::GenerationService& service,
                                                Completions& completions, std::uint32_t world_size);

}  // namespace wsync::engine::http
