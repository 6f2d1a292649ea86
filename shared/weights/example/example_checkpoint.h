// Writes a synthetic checkpoint for demonstrations, benchmarks and tests: a Hugging Face directory
// with sharded safetensors, an index and config.json. The same parameters always give the same
// bytes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::cli {

// Contents of a checkpoint: every tensor, in the order of the model, and its config.json.
struct CheckpointModel {
  std::vector<TensorInfo> tensors;  // BF16, F8_E4M3 and F32
  nlohmann::json config;
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t experts = 0;
};

struct DemoCheckpoint {
  std::string directory;                // created here; must not exist yet
  std::uint64_t bytes = 256ULL << 20U;  // total of all tensors, within a few KiB
  std::uint64_t seed = 1;
  std::uint64_t step = 0;  // every tensor differs for each step and seed
  std::uint32_t shards = 4;
  // Writes this tensor with another shape of the same size, a deliberate error. Empty: no tensor.
  std::string wrong_shape;
  std::optional<CheckpointModel> model = std::nullopt;  // instead of a demo model of `bytes`
};

struct DemoCheckpointInfo {
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t experts = 0;
};

// Writes beside the directory and renames last, so that the directory is complete when it appears.
// kInvalidInput if the directory exists, for a size or shard count out of range and for an unknown
// tensor; kResourceExhausted on a full disk (nothing remains then).
[[nodiscard]] Result<DemoCheckpointInfo> make_demo_checkpoint(const DemoCheckpoint& wanted);

}  // namespace wsync::cli
