// How large the buffers of a group of devices are, and what they take of each memory. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/device/device.h"

namespace wsync::reload {

// One H2D buffer and the IPC buffers.
inline constexpr std::uint64_t kBuffersPerDevice = 1 + limits::kIpcBufferCount;

// A memory that some of the group's devices share: a GPU's, or the host's.
struct BufferRoom {
  std::string name;           // for sentences
  std::uint32_t devices = 1;  // of the group, that have their buffers in it
  std::uint64_t free_bytes = 0;
};

// What the driver takes of the memory for one buffer of a device of that kind.
[[nodiscard]] std::uint64_t buffer_takes(device::DeviceKind kind, std::uint64_t buffer_bytes);
// What all buffers of `devices` devices take.
[[nodiscard]] std::uint64_t buffers_take(device::DeviceKind kind, std::uint32_t devices,
                                         std::uint64_t buffer_bytes);
// The largest buffer of which those of all devices fit into limits::kDeviceMemoryPercent of the
// room's free bytes; whole MiB.
[[nodiscard]] std::uint64_t largest_buffer(device::DeviceKind kind, const BufferRoom& room);

// The size of each buffer. `wanted`: named by the user, 0 for auto: limits::kHostBufferBytesDefault
// on host devices; on GPUs what fits into the room that has the least, at most
// limits::kGpuBufferBytesDefault. kResourceExhausted when that does not fit, or less than
// limits::kBucketBytesMin would: says how much is free and what to do.
[[nodiscard]] Result<std::uint64_t> choose_buffer_bytes(device::DeviceKind kind,
                                                        std::span<const BufferRoom> rooms,
                                                        std::uint64_t wanted);

}  // namespace wsync::reload
