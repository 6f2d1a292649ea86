// Checkpoints of published models by name, scaled to a size. With WSYNC_BUILD_BENCH.
#pragma once

#include <cstdint>
#include <string>

#include "shared/weights/example/example_checkpoint.h"

namespace wsync::cli {

// The tensors and config.json of scaled_shape.h: of `bytes` at most. kInvalidInput for a
// name that is not there and a size that is too small.
[[nodiscard]] Result<CheckpointModel> published_model(const std::string& name, std::uint64_t bytes);

}  // namespace wsync::cli
