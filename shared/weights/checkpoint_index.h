// The index of a sharded checkpoint: model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "shared/base/error.h"

namespace wsync {

struct CheckpointIndex {
  std::map<std::string, std::string> weight_map;  // tensor to file name
  std::optional<std::uint64_t> total_size;        // from metadata, if it is an unsigned integer
};

// kInvalidInput with one line that names the tensor and the rule: not JSON, no weight_map, a
// duplicate name, a value that is not a string, a file name that is not a plain "*.safetensors"
// (this includes names that lead out of the directory), a limit, or metadata.delta_encoding: such a
// directory has changes to other weights. The caller adds the file name.
[[nodiscard]] Result<CheckpointIndex> parse_checkpoint_index(std::span<const std::byte> json);

// Returns the index as text.
[[nodiscard]] Result<std::string> make_checkpoint_index(const CheckpointIndex& index);

}  // namespace wsync
