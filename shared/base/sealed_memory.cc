#include "shared/base/sealed_memory.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"

namespace wsync {
namespace {

constexpr int kContentSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr std::size_t kWriteBytes = std::size_t{64} << 20U;  // of one call

Result<> write_all(int fd, std::span<const std::byte> bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), kWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_errno(fmt::format("write memory {}", name), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

Result<SealedMemory> SealedMemory::create(const std::string& name,
                                          std::span<const std::span<const std::byte>> parts) {
  std::uint64_t total = 0;
  for (const auto& part : parts) total += part.size();
  WSYNC_TRY(require_memory(total, fmt::format("memory {}", name)));
  UniqueFd fd = UniqueFd::made_by(
      [&] { return ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!fd.valid()) return fail_errno(fmt::format("memory {}: memfd_create", name), errno);
  for (const auto& part : parts) WSYNC_TRY(write_all(fd.get(), part, name));
  if (::fcntl(fd.get(), F_ADD_SEALS, kContentSeals) != 0)
    return fail_errno(fmt::format("seal memory {}", name), errno);
  auto region = WSYNC_TRY(map(fd.get(), total));
  return SealedMemory(std::move(fd), std::move(region));
}

Result<SealedMemory> SealedMemory::adopt(UniqueFd fd, std::uint64_t max_bytes) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("look at sealed memory", errno);
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (bytes > max_bytes)
    return fail(ErrorCode::kRefused,
                fmt::format("the memory has {} bytes, at most {} are expected", bytes, max_bytes));
  auto region = WSYNC_TRY(map(fd.get(), bytes));
  return SealedMemory(std::move(fd), std::move(region));
}

Result<MappedRegion> SealedMemory::map(int fd, std::uint64_t bytes, unsigned threads) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info{};
  if (seals < 0 || (seals & kContentSeals) != kContentSeals || ::fstat(fd, &info) != 0)
    return fail(ErrorCode::kRefused, "the descriptor is not a memfd with sealed content");
  if (info.st_size <= 0 || static_cast<std::uint64_t>(info.st_size) != bytes)
    return fail(
        ErrorCode::kRefused,
        fmt::format("the memory has {} bytes, expected {} as announced", info.st_size, bytes));
  auto region = WSYNC_TRY(MappedRegion::map(fd, bytes, false));
  WSYNC_TRY(region.keep_from_children());
  WSYNC_TRY(region.populate(false, threads));
  return region;
}

Result<UniqueFd> SealedMemory::share() const {
  const std::string path = fmt::format("/proc/self/fd/{}", fd_.get());
  UniqueFd fd = UniqueFd::made_by([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (!fd.valid()) return fail_errno("re-open sealed memory read-only", errno);
  return fd;
}

}  // namespace wsync
