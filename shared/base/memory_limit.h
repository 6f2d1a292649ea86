// How much memory this process may still allocate: the minimum of the machine's available memory
// and of what each memory control group above the process (version 1 or 2) has left.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync {

// Locations of the kernel's files. Tests point these at a fake tree.
struct MemoryFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string limited_by;  // the file that sets the limit, for error sentences
};

// Returns how many bytes can be allocated before the machine or a control group runs out. Page
// cache that a group can reclaim (inactive_file) counts as free. kIo if MemAvailable cannot be
// read. Control group files that do not exist impose no limit.
[[nodiscard]] Result<AvailableMemory> available_memory(const MemoryFiles& files = {});

// kResourceExhausted unless `bytes` are available. The sentence names `what`, the bytes needed, the
// bytes available and the file that limits them.
[[nodiscard]] Result<> require_memory(std::uint64_t bytes, const std::string& what,
                                      const MemoryFiles& files = {});

}  // namespace wsync
