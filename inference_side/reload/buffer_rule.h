// Computes the size of the buffers of a device group, and how much of each memory they need. Pure.
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

// The IPC buffers, and an H2D buffer if the group has several devices.
[[nodiscard]] constexpr std::uint64_t buffers_per_device(std::uint32_t group_devices) noexcept {
  return limits::kIpcBufferCount + (group_devices > 1 ? 1 : 0);
}

// GPU memory that is used in addition to the buffers. It is measured where possible; otherwise
// these estimates apply. The memory of a context cannot be measured, because the driver calls that
// report free memory already need a context.
inline constexpr std::uint64_t kContextBytes = 512 * limits::kMiB;  // of each GPU and process
inline constexpr std::uint64_t kNcclBytes = 384 * limits::kMiB;     // of each communicator
inline constexpr std::uint64_t kTablesBytes = 4 * limits::kMiB;     // of each device's streams
// GPU memory that the group uses in addition to buffers and context: tables of streams,
// communicators.
[[nodiscard]] std::uint64_t streams_take(DeviceKind kind, std::uint32_t devices, bool nccl);

// A memory that some devices of the group share: the memory of one GPU, or host memory.
struct BufferRoom {
  std::string name;           // for messages
  std::uint32_t devices = 1;  // number of devices of the group whose buffers are in it
  std::uint64_t free_bytes = 0;
  // Part of them: streams_take(), and contexts that do not exist yet.
  std::uint64_t reserved_bytes = 0;
};

// Memory that all buffers of `devices` devices of a group of `group_devices` need.
[[nodiscard]] std::uint64_t buffers_take(DeviceKind kind, std::uint32_t devices,
                                         std::uint32_t group_devices, std::uint64_t buffer_bytes);

// Chooses the size of each buffer. `wanted` is the size that the user has set, or 0 for automatic.
// The automatic size is limits::kHostBufferBytesDefault on host devices. On GPUs it is the largest
// size that fits into the smallest room, and at most limits::kGpuBufferBytesDefault. Buffers may
// use limits::kDeviceMemoryPercent of the free bytes, minus the reserved bytes. Returns
// kResourceExhausted if the size does not fit, or if only a size below limits::kBucketBytesMin
// fits; the error contains the free bytes and a remedy. `setting` is the name of the key with which
// the user sets `wanted`.
[[nodiscard]] Result<std::uint64_t> choose_buffer_bytes(
    DeviceKind kind, std::span<const BufferRoom> rooms, std::uint64_t wanted,
    std::string_view setting = "devices.buffer_bytes");

}  // namespace wsync::reload
