// How large the buffers of a group of devices are, and what they take of each memory. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/device/device.h"

namespace wsync::reload {

// One H2D buffer and the IPC buffers.
inline constexpr std::uint64_t kBuffersPerDevice = 1 + limits::kIpcBufferCount;

// What a GPU gives beside the buffers; measured where that can be, else these. A context cannot be
// measured by the driver's own calls, which need one to say how much is free.
inline constexpr std::uint64_t kContextBytes = 512 * limits::kMiB;  // of each GPU and process
inline constexpr std::uint64_t kNcclBytes = 384 * limits::kMiB;     // of each communicator
inline constexpr std::uint64_t kTablesBytes = 4 * limits::kMiB;     // of each device's streams
// What the group takes of a GPU beside buffers and context: tables of streams, and communicators.
[[nodiscard]] std::uint64_t streams_take(DeviceKind kind, std::uint32_t devices, bool nccl);

// A memory that some of the group's devices share: a GPU's, or the host's.
struct BufferRoom {
  std::string name;           // for sentences
  std::uint32_t devices = 1;  // of the group, that have their buffers in it
  std::uint64_t free_bytes = 0;
  std::uint64_t reserved_bytes = 0;  // of them: streams_take(), and contexts that are still to come
};

// What all buffers of `devices` devices take of the memory.
[[nodiscard]] std::uint64_t buffers_take(DeviceKind kind, std::uint32_t devices,
                                         std::uint64_t buffer_bytes);

// The size of each buffer. `wanted`: named by the user, 0 for auto: limits::kHostBufferBytesDefault
// on host devices; on GPUs what fits into the room that has the least, at most
// limits::kGpuBufferBytesDefault. What fits is limits::kDeviceMemoryPercent of the free bytes, less
// what is reserved. kResourceExhausted when that does not fit, or less than limits::kBucketBytesMin
// would: says how much is free and what to do; `setting` is where the user named `wanted`.
[[nodiscard]] Result<std::uint64_t> choose_buffer_bytes(
    DeviceKind kind, std::span<const BufferRoom> rooms, std::uint64_t wanted,
    std::string_view setting = "devices.buffer_bytes");

}  // namespace wsync::reload
