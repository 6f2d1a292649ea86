// Limits of training schedules.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

inline constexpr std::uint64_t kPipelineRankCount = 1024;
inline constexpr std::uint64_t kVirtualChunkCount = 64;  // of one rank
inline constexpr std::uint64_t kPipelineStageCount = 4096;
inline constexpr std::uint64_t kMicrobatchCount = 65'536;
inline constexpr std::uint64_t kScheduleCellCount = 1U << 20U;  // stages * micro-batches
inline constexpr std::uint64_t kScheduleViolationCount = 1000;  // reported for one schedule
inline constexpr std::uint64_t kActionTextBytes = 64 * kMiB;    // size of a schedule file

}  // namespace wsync::limits
