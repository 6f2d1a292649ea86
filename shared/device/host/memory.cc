#include "shared/device/host/memory.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/base/weight_limits.h"

namespace wsync::device::host {
namespace {

// The size is fixed, so an importer gets no SIGBUS. Only the creator's existing mapping can write.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::allocate(DeviceKind kind, std::uint64_t bytes) {
  if (bytes == 0 || bytes > limits::kBucketBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("device memory of {} bytes cannot be allocated, expected 1 to {}",
                            bytes, limits::kBucketBytesMax));
  WSYNC_TRY(require_memory(bytes, "device memory"));
  UniqueFd fd(::memfd_create("wsync-device", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return fail_errno("device memory: memfd_create", errno);
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return fail_errno(fmt::format("device memory: cannot reserve {} bytes", bytes), errno);
  auto region = WSYNC_TRY(MappedRegion::map(fd.get(), bytes, true));
  WSYNC_TRY(region.populate(true, 1));
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return fail_errno("device memory: cannot seal the memfd", errno);
  return std::unique_ptr<HostMemory>(
      new HostMemory(kind, Origin::kOwn, std::move(region), std::move(fd)));
}

Result<std::unique_ptr<HostMemory>> HostMemory::import(DeviceKind kind, MemoryHandle handle) {
  if (handle.kind != kind || !handle.fd.valid())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a {} device cannot import a handle of a {} device {}",
                            device_kind_name(kind), device_kind_name(handle.kind),
                            handle.fd.valid() ? "" : "without a file descriptor"));
  struct stat info{};
  if (::fstat(handle.fd.get(), &info) != 0) return fail_errno("device memory: fstat", errno);
  if (handle.bytes == 0 || static_cast<std::uint64_t>(info.st_size) != handle.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("imported device memory: the handle says {} bytes, but the file has {}",
                            handle.bytes, info.st_size));
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (const int seals = ::fcntl(handle.fd.get(), F_GET_SEALS);
      seals < 0 || (seals & kNeeded) != kNeeded)
    return fail(ErrorCode::kInvalidInput,
                "imported device memory: the file is not a memfd of sealed size");
  auto region = WSYNC_TRY(MappedRegion::map(handle.fd.get(), handle.bytes, false));
  WSYNC_TRY(region.populate(false, 1));
  return std::unique_ptr<HostMemory>(
      new HostMemory(kind, Origin::kImported, std::move(region), std::move(handle.fd)));
}

std::unique_ptr<HostMemory> HostMemory::alias(DeviceKind kind, std::span<const std::byte> range) {
  // The cast is safe: an alias is not writable(), which every copy checks.
  return std::unique_ptr<HostMemory>(
      new HostMemory(kind, Origin::kAliased, const_cast<std::byte*>(range.data()), range.size()));
}

std::unique_ptr<HostMemory> HostMemory::borrow(DeviceKind kind, std::span<std::byte> range) {
  return std::unique_ptr<HostMemory>(
      new HostMemory(kind, Origin::kBorrowed, range.data(), range.size()));
}

Result<MemoryHandle> HostMemory::export_handle() const {
  if (origin_ != Origin::kOwn)
    return fail(ErrorCode::kRefused, "only memory that a device allocated itself can be exported");
  UniqueFd fd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) return fail_errno("device memory: cannot duplicate its descriptor", errno);
  return MemoryHandle{.kind = kind_, .bytes = bytes_, .fd = std::move(fd), .opaque = {}};
}

}  // namespace wsync::device::host
