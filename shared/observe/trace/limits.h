// Limits of spans and trace files.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

inline constexpr std::uint64_t kTraceSpans = 1U << 20U;        // kept per process
inline constexpr std::uint64_t kTraceTextBytes = 512;          // one name, lane or text of a span
inline constexpr std::uint64_t kTraceArgs = 32;                // per span
inline constexpr std::uint64_t kTraceAnswerBytes = 64 * kMiB;  // spans of a fleet in one message
inline constexpr std::uint64_t kTraceFileBytes = 512 * kMiB;   // trace file to read
inline constexpr std::uint64_t kTraceFileEvents = 8U << 20U;
inline constexpr std::uint64_t kTraceFileDepth = 32;     // nesting of lists and objects in it
inline constexpr std::uint64_t kTraceFlows = 1U << 18U;  // arrows in one trace

}  // namespace wsync::limits
