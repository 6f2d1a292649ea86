#include "shared/base/numa.h"

#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <linux/mempolicy.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared/base/format.h"

namespace wsync {
namespace {

// A kernel with a smaller maximum accepts this longer mask unless a bit beyond its own maximum is
// set.
constexpr std::size_t kNodes = kNumaNodesMax;
constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
using NodeMask = std::array<unsigned long, kNodes / kWordBits>;

}  // namespace

bool has_numa_nodes(const std::filesystem::path& root) {
  std::ifstream file(root / "sys/devices/system/node/online");
  std::string nodes;  // "0", "0-1", "0,2"
  return std::getline(file, nodes) && nodes.find_first_of("-,") != std::string::npos;
}

Result<> prefer_node(std::span<std::byte> range, std::uint32_t node) {
  if (node >= kNodes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("NUMA node {}: expected one below {}", node, kNodes));
  NodeMask mask{};
  mask.at(node / kWordBits) = 1UL << (node % kWordBits);
  // The kernel uses one bit less than the given length of the mask.
  if (::syscall(SYS_mbind, range.data(), range.size(), MPOL_PREFERRED, mask.data(), kNodes + 1,
                0U) == 0)
    return {};
  return fail_errno(fmt::format("prefer NUMA node {} for {} bytes", node, range.size()), errno);
}

Result<std::optional<std::uint32_t>> preferred_node(std::span<const std::byte> range) {
  NodeMask mask{};
  int mode = MPOL_DEFAULT;
  if (::syscall(SYS_get_mempolicy, &mode, mask.data(), kNodes + 1, range.data(), MPOL_F_ADDR) != 0)
    return fail_errno("the NUMA policy of a range", errno);
  if (mode == MPOL_PREFERRED)
    for (std::uint32_t node = 0; node < kNodes; ++node)
      if ((mask.at(node / kWordBits) >> (node % kWordBits) & 1U) != 0) return node;
  return std::nullopt;
}

}  // namespace wsync
