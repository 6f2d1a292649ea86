#include "shared/device/cuda/allocation_description.h"

#include <mutex>
#include <random>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {
namespace {

constexpr std::uint64_t kMagic = 0x6370696164756377;  // "wcudaipc"
constexpr std::uint32_t kVersion = 2;                 // 1: handles of legacy IPC

}  // namespace

Bytes encode(const AllocationDescription& description) {
  ByteWriter writer;
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(description.pid);
  writer.put(description.process);
  writer.put(description.allocation);
  writer.put(description.bytes);
  writer.put(description.mapped_bytes);
  writer.put_string(description.uuid);
  return std::move(writer).take();
}

Result<AllocationDescription> decode_description(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (reader.get<std::uint64_t>("magic") != kMagic && reader.ok())
    reader.violate("magic", "these bytes are not a handle of GPU memory");
  if (const auto version = reader.get<std::uint32_t>("version"); reader.ok() && version != kVersion)
    reader.violate("version", fmt::format("{}, expected {}", version, kVersion));
  AllocationDescription description;
  description.pid = reader.get<std::uint32_t>("pid");
  description.process = reader.get<std::uint64_t>("process");
  description.allocation = reader.get<std::uint64_t>("allocation");
  const std::uint64_t size = reader.get<std::uint64_t>("bytes");
  if (reader.ok() && (size == 0 || size > limits::kBucketBytesMax))
    reader.violate("bytes", fmt::format("{}, expected 1 to {}", size, limits::kBucketBytesMax));
  const std::uint64_t mapped = reader.get<std::uint64_t>("mapped bytes");
  if (reader.ok() && mapped != whole_blocks(size))
    reader.violate("mapped bytes", fmt::format("{}, expected {} for memory of {} bytes", mapped,
                                               whole_blocks(size), size));
  description.bytes = size;
  description.mapped_bytes = mapped;
  description.uuid = reader.get_string(limits::kGpuUuidBytes, "uuid");
  if (reader.ok() && description.uuid.empty()) reader.violate("uuid", "is empty");
  WSYNC_TRY(reader.finish("a handle of GPU memory"));
  return description;
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
