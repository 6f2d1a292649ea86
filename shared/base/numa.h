// NUMA placement of memory with direct system calls (mbind and get_mempolicy). A library would add
// no more than the values of two arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "shared/base/error.h"

namespace wsync {

// Maximum number of nodes that a kernel can be built for.
inline constexpr std::uint32_t kNumaNodesMax = 1024;

// Returns true if more than one node has memory or processors; false also if the system does not
// report it.
[[nodiscard]] bool has_numa_nodes(const std::filesystem::path& root = "/");

// Makes `node` the preferred node of the pages in the range that are touched from now on. Pages
// come from other nodes when it has no free ones. The range must begin at a page. Shared memory
// keeps this policy for every process that touches a page first. kInvalidInput if the node number
// is too large; kIo with the system's error text (a container may forbid the call).
[[nodiscard]] Result<> prefer_node(std::span<std::byte> range, std::uint32_t node);

// Returns the node that pages at the beginning of the range prefer; std::nullopt if the default
// policy of the process applies.
[[nodiscard]] Result<std::optional<std::uint32_t>> preferred_node(std::span<const std::byte> range);

}  // namespace wsync
