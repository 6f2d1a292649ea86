// Bounds of configuration values, and of a configuration file itself.
#pragma once

#include <cstdint>

namespace wsync::config {

inline constexpr std::uint64_t kConfigBytesMax = 256 * 1024;
inline constexpr std::uint64_t kConfigDepthMax = 8;
inline constexpr std::uint64_t kConfigPathBytesMax = 1024;
inline constexpr std::int64_t kDurationMsMax = 24LL * 3600 * 1000;
inline constexpr std::uint32_t kVersionsHeldMin = 2;  // one is served while the next arrives
inline constexpr std::uint32_t kVersionsHeldMax = 16;
inline constexpr std::uint32_t kArenasMin = 3;  // the target, the version before it, the next one
inline constexpr std::uint32_t kArenasMax = 16;
inline constexpr std::uint32_t kSnapshotThreadsMax = 256;
inline constexpr std::uint32_t kDirectoriesKeptMax = 1024;
inline constexpr std::uint32_t kTraceSpansMax = 1U << 20U;

}  // namespace wsync::config
