// Defaults that several places share: configurations, options of commands, the parts that a
// configuration drives.
#pragma once

#include <cstdint>

namespace wsync::config {

inline constexpr std::uint64_t kBucketBytesDefault = 64ULL << 20U;
inline constexpr std::uint32_t kVersionsHeldDefault = 2;  // serving (or previous) and incoming
inline constexpr std::uint32_t kTraceSpansDefault = 1U << 15U;  // kept by an agent, always

}  // namespace wsync::config
