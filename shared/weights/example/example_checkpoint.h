// Writes a made-up checkpoint for demonstrations, benchmarks and tests: a Hugging Face directory
// with sharded safetensors, an index and config.json. The same parameters give the same bytes,
// always.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::cli {

// What a checkpoint describes: every tensor, in the order of the model, and its config.json.
struct CheckpointModel {
  std::vector<TensorInfo> tensors;  // BF16, F8_E4M3 and F32
  nlohmann::json config;
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t experts = 0;
};

struct DemoCheckpoint {
  std::string directory;                // made here; must not exist yet
  std::uint64_t bytes = 256ULL << 20U;  // of all tensors, met within a few KiB
  std::uint64_t seed = 1;
  std::uint64_t step = 0;  // other bytes for each step and seed, in every tensor
  std::uint32_t shards = 4;
  // Writes this tensor with another shape of the same size (a deliberate misfit); empty: none.
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

// Writes beside the directory and renames last, so that it is complete as soon as it is there.
// kRefused when the directory exists, kInvalidInput for a size or shard count out of range or an
// unknown tensor, kResourceExhausted on a full disk (nothing is left behind then).
[[nodiscard]] Result<DemoCheckpointInfo> make_demo_checkpoint(const DemoCheckpoint& wanted);

}  // namespace wsync::cli
