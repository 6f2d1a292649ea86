// Memory that processes share.
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/emulated_cuda/state.h"
#include "tests/emulated_cuda/usage.h"

namespace emulated_cuda {

Charge::~Charge() { give_back(number, bytes); }

Storage::~Storage() {
  ::munmap(base_, mapped_);
  ::close(fd_);
}

std::shared_ptr<Storage> Storage::create(int number, std::uint64_t bytes) {
  const std::size_t all = SharedPage::kBytes + bytes;
  const int fd = ::memfd_create("emulated_cuda", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  void* base = MAP_FAILED;
  if (::ftruncate(fd, static_cast<off_t>(all)) == 0)
    base = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    ::close(fd);
    return nullptr;
  }
  auto* page = new (base) SharedPage;
  page->bytes = bytes;
  gpu_uuid(number, page->gpu);
  return std::shared_ptr<Storage>(new Storage(fd, base, all));
}

std::shared_ptr<Storage> Storage::open(int fd) {
  struct stat facts{};
  if (::fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) ||
      facts.st_size < static_cast<off_t>(SharedPage::kBytes))
    return nullptr;
  SharedPage page;
  const auto read = ::pread(fd, &page, sizeof page, 0);
  const auto all = static_cast<std::size_t>(facts.st_size);
  if (read != static_cast<ssize_t>(sizeof page) || page.magic != SharedPage::kMagic ||
      page.bytes != all - SharedPage::kBytes)
    return nullptr;
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  void* const base = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  if (base == MAP_FAILED) {
    ::close(own);
    return nullptr;
  }
  return std::shared_ptr<Storage>(new Storage(own, base, all));
}

}  // namespace emulated_cuda
