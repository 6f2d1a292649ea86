#include "bench/baseline/pages.h"

#include <cerrno>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

constexpr std::size_t kPageBytes = 4096;

}  // namespace

Result<Pages> Pages::map(int fd, int flags, std::size_t bytes, PageKind kind) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) return fail_errno(fmt::format("map {} bytes", bytes), errno);
  // madvise() fails if the system has no huge pages at all. Then all pages are small.
  (void)::madvise(at, bytes, kind == PageKind::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return Pages({static_cast<std::byte*>(at), bytes});
}

Result<Pages> Pages::make_private(std::size_t bytes, PageKind kind) {
  return map(-1, MAP_PRIVATE | MAP_ANONYMOUS, bytes, kind);
}

Result<Pages> Pages::map_shared(int fd, std::size_t bytes, PageKind kind) {
  return map(fd, MAP_SHARED, bytes, kind);
}

Pages::~Pages() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void Pages::touch() const noexcept {
  // volatile keeps the compiler from removing writes that are never read.
  volatile std::byte* const at = bytes_.data();
  for (std::size_t i = 0; i < bytes_.size(); i += kPageBytes) at[i] = std::byte{1};
}

std::size_t Pages::huge_bytes() const {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes_.data());
  std::ifstream file("/proc/self/smaps");
  std::size_t found = 0;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    // The line of a mapping begins with "begin-end" in hexadecimal. The kernel may merge adjacent
    // mappings of one kind.
    const std::size_t dash = line.find('-');
    const std::size_t space = line.find(' ');
    if (dash != std::string::npos && dash < space &&
        line.find_first_not_of("0123456789abcdef") == dash) {
      const auto from = std::stoull(line, nullptr, 16);
      const auto to = std::stoull(line.substr(dash + 1), nullptr, 16);
      inside = from < begin + bytes_.size() && to > begin;
    } else if (inside &&
               (line.starts_with("AnonHugePages:") || line.starts_with("ShmemPmdMapped:"))) {
      found += std::stoull(line.substr(line.find(':') + 1)) * limits::kKiB;
    }
  }
  return found;
}

Result<UniqueFd> make_memory_file(std::size_t bytes) {
  UniqueFd fd(::memfd_create("wsync-bench", MFD_CLOEXEC));
  if (!fd.valid()) return fail_errno("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return fail_errno(fmt::format("a file in memory of {} bytes", bytes), errno);
  return fd;
}

}  // namespace wsync::bench
