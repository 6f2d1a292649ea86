// The memory of arenas: the keys memory.*.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/base/kinds.h"

namespace wsync::config {

struct MemoryConfig {
  HugePages huge_pages = HugePages::kAdvise;
  bool near_gpus = true;  // numa_node: auto, the node of the GPUs where it is known
  std::optional<std::uint32_t> numa_node;  // a node that is set
  friend bool operator==(const MemoryConfig&, const MemoryConfig&) = default;
};

}  // namespace wsync::config
