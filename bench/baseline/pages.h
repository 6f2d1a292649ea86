// Memory in whole pages, for measurements.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::bench {

enum class PageKind : std::uint8_t { kSmall, kHuge };

// A writable mapping of untouched pages. The destructor unmaps it.
class Pages {
 public:
  // Private memory. `kind` is a request; the system's setting decides.
  [[nodiscard]] static Result<Pages> make_private(std::size_t bytes, PageKind kind);
  // Maps a whole memfd.
  [[nodiscard]] static Result<Pages> map_shared(int fd, std::size_t bytes, PageKind kind);
  Pages(Pages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Pages& operator=(Pages&&) = delete;
  ~Pages();
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  // Writes one byte of each page of 4 KiB.
  void touch() const noexcept;
  // Bytes in huge pages now, as reported by the kernel. 0 if the kernel does not report it.
  [[nodiscard]] std::size_t huge_bytes() const;

 private:
  explicit Pages(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}
  [[nodiscard]] static Result<Pages> map(int fd, int flags, std::size_t bytes, PageKind kind);
  std::span<std::byte> bytes_;
};

// Creates a file in memory of `bytes` bytes, none of them allocated.
[[nodiscard]] Result<UniqueFd> make_memory_file(std::size_t bytes);

}  // namespace wsync::bench
