// How large the buffers of a group of devices are, and how much of each memory they need. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/ipc_buffers.h"
#include "shared/base/units.h"
#include "shared/device/device.h"

namespace wsync::reload {

// One H2D buffer and the IPC buffers.
inline constexpr std::uint64_t kBuffersPerDevice = 1 + limits::kIpcBufferCount;

// Memory of a GPU that is used beside the buffers: measured where that is possible, otherwise these
// estimates. The driver cannot measure a context: its calls that report free memory need one.
inline constexpr std::uint64_t kContextBytes = 512 * limits::kMiB;  // of each GPU and process
inline constexpr std::uint64_t kNcclBytes = 384 * limits::kMiB;     // of each communicator
inline constexpr std::uint64_t kTablesBytes = 4 * limits::kMiB;     // of each device's streams
// Memory of a GPU that the group uses beside buffers and context: tables of streams, communicators.
[[nodiscard]] std::uint64_t streams_take(DeviceKind kind, std::uint32_t devices, bool nccl);

// A memory that some devices of the group share: the memory of a GPU, or of the host.
struct BufferRoom {
  std::string name;           // for sentences
  std::uint32_t devices = 1;  // of the group, with their buffers in it
  std::uint64_t free_bytes = 0;
  std::uint64_t reserved_bytes = 0;  // of them: streams_take(), and contexts that do not exist yet
};

// Memory that all buffers of `devices` devices need.
[[nodiscard]] std::uint64_t buffers_take(DeviceKind kind, std::uint32_t devices,
                                         std::uint64_t buffer_bytes);

// The size of each buffer. `wanted` is the size that the user has set, or 0 for auto. Auto is
// limits::kHostBufferBytesDefault on host devices. On GPUs it is the largest size that fits into
// the smallest room, at most limits::kGpuBufferBytesDefault. Buffers may use
// limits::kDeviceMemoryPercent of the free bytes, less the reserved ones. kResourceExhausted when
// the size does not fit, or when only a size below limits::kBucketBytesMin would; the error says
// how much is free and what to do. `setting` names the key with which the user has set `wanted`.
[[nodiscard]] Result<std::uint64_t> choose_buffer_bytes(
    DeviceKind kind, std::span<const BufferRoom> rooms, std::uint64_t wanted,
    std::string_view setting = "devices.buffer_bytes");

}  // namespace wsync::reload
