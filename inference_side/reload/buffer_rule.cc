#include "inference_side/reload/buffer_rule.h"

#include <algorithm>

#include "inference_side/reload/buffer_limits.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/device/device.h"
#include "shared/observe/trace/progress.h"

namespace wsync::reload {
namespace {

// Memory that the driver allocates for one buffer of a device of that kind.
std::uint64_t buffer_takes(DeviceKind kind, std::uint64_t buffer_bytes) {
  if (kind != DeviceKind::kCuda) return buffer_bytes;
  return device::whole_blocks(buffer_bytes);
}

std::uint64_t usable(const BufferRoom& room) {
  const std::uint64_t share = room.free_bytes / 100 * limits::kDeviceMemoryPercent;
  return share - std::min(share, room.reserved_bytes);
}

// The largest buffer size, in whole MiB, with which the buffers of all devices fit.
std::uint64_t largest_buffer(DeviceKind kind, const BufferRoom& room, std::uint32_t group_devices) {
  const std::uint64_t each = usable(room) / (buffers_per_device(group_devices) * room.devices);
  const std::uint64_t unit = kind == DeviceKind::kCuda ? device::kGpuBlockBytes : limits::kMiB;
  return each / unit * unit;
}

Error does_not_fit(DeviceKind kind, const BufferRoom& room, std::uint32_t group_devices,
                   std::uint64_t buffer_bytes, std::string_view setting) {
  const std::uint64_t largest = largest_buffer(kind, room, group_devices);
  const std::string advice =
      largest >= limits::kBucketBytesMin
          ? fmt::format("set {} to at most {}MiB", setting, largest / limits::kMiB)
          : std::string("free memory there, for example by giving the engines less");
  const std::string reserved =
      room.reserved_bytes == 0
          ? std::string()
          : fmt::format(" beside the {} that streams, communicators and contexts need",
                        trace::format_bytes(room.reserved_bytes));
  return {ErrorCode::kResourceExhausted,
          fmt::format("{}: {} buffers of {} do not fit{}: {} are free, of which {} % may be used; "
                      "{}",
                      room.name, buffers_per_device(group_devices) * room.devices,
                      trace::format_bytes(buffer_bytes), reserved,
                      trace::format_bytes(room.free_bytes), limits::kDeviceMemoryPercent, advice)};
}

}  // namespace

std::uint64_t streams_take(DeviceKind kind, std::uint32_t devices, bool nccl) {
  if (kind != DeviceKind::kCuda) return 0;
  return devices * (kTablesBytes + (nccl ? kNcclBytes : 0));
}

std::uint64_t buffers_take(DeviceKind kind, std::uint32_t devices, std::uint32_t group_devices,
                           std::uint64_t buffer_bytes) {
  return buffers_per_device(group_devices) * devices * buffer_takes(kind, buffer_bytes);
}

Result<std::uint64_t> choose_buffer_bytes(DeviceKind kind, std::span<const BufferRoom> rooms,
                                          std::uint64_t wanted, std::string_view setting) {
  std::uint32_t group_devices = 0;
  for (const BufferRoom& room : rooms) group_devices += room.devices;
  std::uint64_t bytes = wanted;
  if (bytes == 0 && kind != DeviceKind::kCuda) bytes = limits::kHostBufferBytesDefault;
  if (bytes == 0) {
    bytes = limits::kGpuBufferBytesDefault;
    for (const BufferRoom& room : rooms)
      bytes = std::min(bytes, largest_buffer(kind, room, group_devices));
    bytes = std::max(bytes, limits::kBucketBytesMin);
  }
  for (const BufferRoom& room : rooms)
    if (buffers_take(kind, room.devices, group_devices, bytes) > usable(room))
      return fail(does_not_fit(kind, room, group_devices, bytes, setting));
  return bytes;
}

}  // namespace wsync::reload
