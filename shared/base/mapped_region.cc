#include "shared/base/mapped_region.h"

#include <algorithm>
#include <cerrno>
#include <sys/mman.h>
#include <thread>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/planted.h"

// Older C library headers lack these constants. The values are the kernel's.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace wsync {
namespace {

constexpr std::uint64_t kPopulateSliceBytes = 8ULL << 20U;  // a multiple of the huge page size

// Populates the slices first, first + step, ... of a region; returns 0 or an errno.
int populate_slices(std::span<std::byte> region, std::size_t first, std::size_t step, bool writable,
                    const std::stop_token& stop, std::atomic<std::uint64_t>* done) {
  for (std::size_t slice = first; slice * kPopulateSliceBytes < region.size(); slice += step) {
    if (stop.stop_requested()) return ECANCELED;
    const std::size_t begin = slice * kPopulateSliceBytes;
    const std::size_t n = std::min<std::size_t>(kPopulateSliceBytes, region.size() - begin);
    int rc = 0;
    do
      rc = ::madvise(region.data() + begin, n, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    while (rc != 0 && (errno == EINTR || errno == EAGAIN));
    if (rc != 0) return errno;
    if (done != nullptr) *done += n;
  }
  return 0;
}

}  // namespace

Result<MappedRegion> MappedRegion::map(int fd, std::uint64_t bytes, bool writable) {
  void* at =
      ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail_errno(fmt::format("map {} bytes of an arena", bytes), errno);
  MappedRegion region;
  region.bytes_ = {static_cast<std::byte*>(at), static_cast<std::size_t>(bytes)};
  return region;
}

void MappedRegion::unmap() noexcept {
  companion_.reset();
  while (!bytes_.empty()) {
    const auto slice = bytes_.first(std::min<std::size_t>(bytes_.size(), kMappingSliceBytes));
    ::munmap(slice.data(), slice.size());
    bytes_ = bytes_.subspan(slice.size());
  }
}

Result<> MappedRegion::keep_from_children() const {
  if (planted("child_keeps_memory")) return {};
  if (::madvise(bytes_.data(), bytes_.size(), MADV_DONTFORK) == 0) return {};
  return fail_errno(fmt::format("keep {} bytes of an arena from forked children", bytes_.size()),
                    errno);
}

Result<> MappedRegion::populate(bool writable, unsigned threads, const std::stop_token& stop,
                                std::atomic<std::uint64_t>* done) const {
  std::vector<int> errors(std::max(1U, threads), 0);
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 1; i < errors.size(); ++i)
      workers.emplace_back(
          [&, i] { errors[i] = populate_slices(bytes_, i, errors.size(), writable, stop, done); });
    errors[0] = populate_slices(bytes_, 0, errors.size(), writable, stop, done);
  }
  for (const int error : errors) {
    // Kernels before 5.14 do not support this request. Pages are then allocated at their first use.
    if (error == 0 || error == EINVAL) continue;
    if (error == ECANCELED)
      return fail(
          ErrorCode::kCancelled,
          fmt::format("stopped while the pages of {} bytes were being touched", bytes_.size()));
    // EFAULT means that an access would raise SIGBUS (madvise(2)), because no page can be
    // allocated.
    return fail_errno(fmt::format("touch {} bytes of an arena", bytes_.size()),
                      error == EFAULT ? ENOMEM : error);
  }
  return {};
}

}  // namespace wsync
