#include "shared/device/cuda/ipc_handle.h"

#include <cstring>
#include <mutex>
#include <random>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"

namespace wsync::device::cuda {
namespace {

constexpr std::uint64_t kMagic = 0x6370696164756377;  // "wcudaipc"
constexpr std::uint32_t kVersion = 1;

}  // namespace

Bytes encode(const IpcHandle& handle) {
  ByteWriter writer;
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(handle.pid);
  writer.put(handle.process);
  writer.put(handle.allocation);
  writer.put(handle.bytes);
  writer.put_string(handle.uuid);
  writer.put_raw(std::as_bytes(std::span(handle.memory.reserved)));
  writer.put_raw(std::as_bytes(std::span(handle.event.reserved)));
  return std::move(writer).take();
}

Result<IpcHandle> decode_ipc_handle(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (reader.get<std::uint64_t>("magic") != kMagic && reader.ok())
    reader.violate("magic", "these bytes are not a handle of GPU memory");
  if (const auto version = reader.get<std::uint32_t>("version"); reader.ok() && version != kVersion)
    reader.violate("version", fmt::format("{}, expected {}", version, kVersion));
  IpcHandle handle;
  handle.pid = reader.get<std::uint32_t>("pid");
  handle.process = reader.get<std::uint64_t>("process");
  handle.allocation = reader.get<std::uint64_t>("allocation");
  handle.bytes = reader.get<std::uint64_t>("bytes");
  if (reader.ok() && (handle.bytes == 0 || handle.bytes > limits::kBucketBytesMax))
    reader.violate("bytes",
                   fmt::format("{}, expected 1 to {}", handle.bytes, limits::kBucketBytesMax));
  handle.uuid = reader.get_string(limits::kGpuUuidBytes, "uuid");
  if (reader.ok() && handle.uuid.empty()) reader.violate("uuid", "is empty");
  if (const auto raw = reader.get_raw(sizeof handle.memory, "memory handle"); !raw.empty())
    std::memcpy(&handle.memory, raw.data(), raw.size());
  if (const auto raw = reader.get_raw(sizeof handle.event, "event handle"); !raw.empty())
    std::memcpy(&handle.event, raw.data(), raw.size());
  WSYNC_TRY(reader.finish("a handle of GPU memory"));
  return handle;
}

std::uint64_t this_process() {
  static std::mutex mutex;
  static pid_t pid = 0;
  static std::uint64_t drawn = 0;
  const std::lock_guard lock(mutex);
  if (pid != ::getpid()) {
    pid = ::getpid();
    std::random_device random;
    drawn = (static_cast<std::uint64_t>(random()) << 32U) | random();
  }
  return drawn;
}

}  // namespace wsync::device::cuda
