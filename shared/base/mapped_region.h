// MappedRegion: a mapping of memory that processes share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>

#include "shared/base/error.h"

namespace wsync {

// Size of the slices that are unmapped, protected or reserved in one call. During a call no other
// thread of the process can map memory, and the call cannot be cancelled.
inline constexpr std::uint64_t kMappingSliceBytes = 64ULL << 20U;

// A shared mapping, unmapped on destruction.
class MappedRegion {
 public:
  MappedRegion() noexcept = default;
  // Maps the first `bytes` of fd; errors are kIo or kResourceExhausted.
  [[nodiscard]] static Result<MappedRegion> map(int fd, std::uint64_t bytes, bool writable);
  MappedRegion(MappedRegion&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), companion_(std::move(other.companion_)) {}
  MappedRegion& operator=(MappedRegion&& other) noexcept {
    if (this != &other) {
      unmap();
      bytes_ = std::exchange(other.bytes_, {});
      companion_ = std::move(other.companion_);
    }
    return *this;
  }
  ~MappedRegion() { unmap(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  // Removes this mapping from children created by fork(): an access there is a SIGSEGV. kIo if the
  // system call fails.
  [[nodiscard]] Result<> keep_from_children() const;
  // Creates all page-table entries now, with `threads` threads, and allocates the pages of a
  // writable mapping. kResourceExhausted if there is not enough memory (never a SIGBUS); kCancelled
  // a few milliseconds after `stop` is requested.
  // `done`, if not null, counts the bytes.
  [[nodiscard]] Result<> populate(bool writable, unsigned threads, const std::stop_token& stop = {},
                                  std::atomic<std::uint64_t>* done = nullptr) const;
  // Keeps `companion` with the mapping and destroys it just before the memory is unmapped. It is
  // for what depends on the mapping, such as its registration with a GPU. There is one; an earlier
  // one is destroyed. Thread: at most one thread at a time calls this.
  void accompany(std::shared_ptr<const void> companion) const { companion_ = std::move(companion); }

 private:
  void unmap() noexcept;
  std::span<std::byte> bytes_;
  mutable std::shared_ptr<const void> companion_;
};

}  // namespace wsync
