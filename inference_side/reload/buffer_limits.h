// Sizes of device buffers that nobody has named.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

inline constexpr std::uint64_t kDeviceMemoryPercent = 90;  // of the free memory, for three buffers
inline constexpr std::uint64_t kHostBufferBytesDefault = 4 * kMiB;   // stays in the cache
inline constexpr std::uint64_t kGpuBufferBytesDefault = 512 * kMiB;  // at most, unless it is named

}  // namespace wsync::limits
