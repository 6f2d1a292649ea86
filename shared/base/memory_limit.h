// How much memory this process may still take: the least of the machine's available memory and what
// every memory control group above the process (version 1 or 2) leaves.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync {

// Where the kernel's files are; tests point these at a made-up tree.
struct MemoryFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string limited_by;  // the file that sets it, for error sentences
};

// Bytes that can be allocated before the machine or a control group runs out. Page cache that a
// group could give back (inactive_file) counts as free. kIo when MemAvailable cannot be read;
// control group files that do not exist limit nothing.
[[nodiscard]] Result<AvailableMemory> available_memory(const MemoryFiles& files = {});

// kResourceExhausted, naming `what`, the bytes needed, the bytes available and the file that limits
// them, unless `bytes` are available.
[[nodiscard]] Result<> require_memory(std::uint64_t bytes, const std::string& what,
                                      const MemoryFiles& files = {});

}  // namespace wsync
