// NUMA placement of memory, by the system calls themselves (mbind and get_mempolicy): two numbers
// of arguments are all that a library would add.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "shared/base/error.h"

namespace wsync {

// More than one node has memory or processors; false where the system does not say.
[[nodiscard]] bool has_numa_nodes(const std::filesystem::path& root = "/");

// Pages of the range that are touched from now on come from `node` while it has free ones, then
// from others. The range begins at a page; shared memory keeps it for every process that touches it
// first. kInvalidInput for a node that cannot be; kIo with the system's word (a container may
// forbid the call).
[[nodiscard]] Result<> prefer_node(std::span<std::byte> range, std::uint32_t node);

// The node that pages at the beginning of the range prefer; nothing: the process's own rule.
[[nodiscard]] Result<std::optional<std::uint32_t>> preferred_node(std::span<const std::byte> range);

}  // namespace wsync
