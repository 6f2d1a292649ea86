// Default sizes of device buffers.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

// Share of the free memory that the buffers of a device may use.
inline constexpr std::uint64_t kDeviceMemoryPercent = 90;
// Small enough to stay in the cache.
inline constexpr std::uint64_t kHostBufferBytesDefault = 4 * kMiB;
// Maximum for the automatic choice.
inline constexpr std::uint64_t kGpuBufferBytesDefault = 512 * kMiB;

}  // namespace wsync::limits
