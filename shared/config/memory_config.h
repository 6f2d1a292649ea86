// The memory of arenas: the keys memory.*.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/base/kinds.h"

namespace wsync::config {

struct MemoryConfig {
  HugePages huge_pages = HugePages::kAdvise;
  friend bool operator==(const MemoryConfig&, const MemoryConfig&) = default;
};

}  // namespace wsync::config
