// How many IPC buffers a device has.
#pragma once

#include <cstdint>

namespace wsync::limits {

// One is drained by the engines while the next is filled.
inline constexpr std::uint64_t kIpcBufferCount = 2;

}  // namespace wsync::limits
