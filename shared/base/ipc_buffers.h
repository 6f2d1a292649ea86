// Number of IPC buffers of a device.
#pragma once

#include <cstdint>

namespace wsync::limits {

// The engines drain one buffer while the next is filled.
inline constexpr std::uint64_t kIpcBufferCount = 2;

}  // namespace wsync::limits
