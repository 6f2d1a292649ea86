// Memory by whole pages, for measurements.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::bench {

enum class PageKind : std::uint8_t { kSmall, kHuge };

// A writable mapping that no byte of has been touched, unmapped on destruction.
class Pages {
 public:
  // Private memory. `kind` is asked for; the system's setting decides.
  [[nodiscard]] static Result<Pages> make_private(std::size_t bytes, PageKind kind);
  // All of a memfd.
  [[nodiscard]] static Result<Pages> map_shared(int fd, std::size_t bytes, PageKind kind);
  Pages(Pages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Pages& operator=(Pages&&) = delete;
  ~Pages();
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  // Writes one byte of each page of 4 KiB.
  void touch() const noexcept;
  // Bytes that lie in huge pages now, as the kernel says; 0 when it does not.
  [[nodiscard]] std::size_t huge_bytes() const;

 private:
  explicit Pages(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}
  [[nodiscard]] static Result<Pages> map(int fd, int flags, std::size_t bytes, PageKind kind);
  std::span<std::byte> bytes_;
};

// A new file in memory of so many bytes, none of them allocated.
[[nodiscard]] Result<UniqueFd> make_memory_file(std::size_t bytes);

}  // namespace wsync::bench
