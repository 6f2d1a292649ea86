// Limits of training schedules.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

inline constexpr std::uint64_t kPipelineRankCount = 1024;
inline constexpr std::uint64_t kVirtualChunkCount = 64;  // of one rank
inline constexpr std::uint64_t kPipelineStageCount = 4096;
inline constexpr std::uint64_t kMicrobatchCount = 65'536;
inline constexpr std::uint64_t kScheduleCellCount = 1U << 20U;  // stages times micro-batches
inline constexpr std::uint64_t kScheduleViolationCount = 1000;  // told of one schedule
inline constexpr std::uint64_t kActionTextBytes = 64 * kMiB;    // a schedule that is read

}  // namespace wsync::limits
