// Checkpoints of published models by name, scaled to a size. Only with WSYNC_BUILD_BENCH.
#pragma once

#include <cstdint>
#include <string>

#include "shared/weights/example/example_checkpoint.h"

namespace wsync::cli {

// Returns the tensors and config.json of a model that model_shape.h scales to at most `bytes`.
// kInvalidInput for an unknown name or a size that is too small.
[[nodiscard]] Result<CheckpointModel> published_model(const std::string& name, std::uint64_t bytes);

}  // namespace wsync::cli
