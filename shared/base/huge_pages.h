// Huge pages of 2 MiB for shared memory: what the system gives on request, and the pool that its
// administrator has reserved. A system call, the registration of memory with a GPU, and a change of
// its protection take a fraction of the time on huge pages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/kinds.h"

namespace wsync {

inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20U;

// Returns "off", "advise" or "explicit", as configurations name it.
[[nodiscard]] std::string_view huge_pages_name(HugePages huge_pages) noexcept;

// Returns the setting of the system for huge pages of shared memory (shmem_enabled): "always",
// "within_size", "advise", "never", "deny" or "force". Empty if the system does not report it.
[[nodiscard]] std::string shared_huge_pages(const std::filesystem::path& root = "/");
// Whether memory that asks for huge pages (madvise) gets them with that setting, as far as the
// system has free ones.
[[nodiscard]] bool gives_on_request(std::string_view shared_huge_pages) noexcept;

// The pool of huge pages of 2 MiB. Numbers of pages.
struct HugePagePool {
  std::uint64_t total = 0;     // nr_hugepages
  std::uint64_t free = 0;      // of these; some may be promised to memory that is mapped already
  std::uint64_t promised = 0;  // of the free ones
  std::uint64_t more = 0;      // that the system may add when they are asked for
  // Pages that new memory can get.
  [[nodiscard]] std::uint64_t available() const noexcept {
    return free - (promised < free ? promised : free) + more;
  }
};
// kIo, with the path, if the system has no such pool.
[[nodiscard]] Result<HugePagePool> huge_page_pool(const std::filesystem::path& root = "/");

// Returns the number of huge pages that hold `bytes` bytes.
[[nodiscard]] constexpr std::uint64_t huge_pages_of(std::uint64_t bytes) noexcept {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes;
}
// kResourceExhausted, with the pages needed and found and the setting that adds them, unless the
// pool has pages for `bytes` bytes. `what` names the memory.
[[nodiscard]] Result<> require_huge_pages(std::uint64_t bytes, std::string_view what,
                                          const std::filesystem::path& root = "/");

}  // namespace wsync
