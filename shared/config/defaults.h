// Defaults that are shared by configurations, command options and the components that they
// configure.
#pragma once

#include <chrono>
#include <cstdint>

namespace wsync::config {

inline constexpr std::uint64_t kBucketBytesDefault = 64ULL << 20U;
inline constexpr std::chrono::milliseconds kFollowIntervalDefault{1'000};
inline constexpr std::chrono::milliseconds kIdleReleaseDefault{600'000};
// How long a name that is gone is remembered.
inline constexpr std::chrono::milliseconds kForgetAfterDefault{600'000};
inline constexpr std::uint32_t kArenasDefault = 3;        // target, previous and next version
inline constexpr std::uint32_t kVersionsHeldDefault = 2;  // serving (or previous) and incoming
inline constexpr std::uint32_t kTraceSpansDefault = 1U << 15U;  // retained by an agent by default

}  // namespace wsync::config
