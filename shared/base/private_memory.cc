#include "shared/base/private_memory.h"

#include <cerrno>
#include <string>
#include <sys/mman.h>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"

namespace wsync {

Result<PrivateMemory> PrivateMemory::allocate(std::uint64_t bytes, std::string_view use) {
  PrivateMemory memory;
  if (bytes == 0) return memory;
  WSYNC_TRY(require_memory(bytes, std::string(use)));
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return fail_errno(fmt::format("memory for {}", use), errno);
  memory.bytes_ = {static_cast<std::byte*>(address), bytes};
  // Huge pages make the first touch three times as fast. The call is a hint, so its failure is
  // ignored.
  (void)::madvise(address, bytes, MADV_HUGEPAGE);
  int touched = 0;
  do {
    touched = ::madvise(address, bytes, MADV_POPULATE_WRITE);
  } while (touched != 0 && (errno == EINTR || errno == EAGAIN));
  // Kernels before 5.14 do not support this request. Pages are then allocated at their first use.
  if (touched != 0 && errno != EINVAL)
    return fail_errno(fmt::format("touch the memory for {}", use), errno);
  return memory;
}

PrivateMemory::~PrivateMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace wsync
