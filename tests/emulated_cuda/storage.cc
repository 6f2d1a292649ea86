// Memory that processes share.
#include <cstdio>
#include <fcntl.h>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/process.h"
#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

Storage::~Storage() {
  ::munmap(base_, mapped_);
  ::close(fd_);
}

std::shared_ptr<Storage> Storage::create(std::uint64_t id, std::uint64_t bytes) {
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
  page->id = id;
  std::random_device random;
  page->random = (std::uint64_t{random()} << 32U) | random();
  page->bytes = bytes;
  return std::shared_ptr<Storage>(new Storage(fd, base, all));
}

std::shared_ptr<Storage> Storage::open(int fd, std::uint64_t id, std::uint64_t random) {
  struct stat facts{};
  void* base = MAP_FAILED;
  std::size_t all = 0;
  if (::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) &&
      facts.st_size >= static_cast<off_t>(SharedPage::kBytes)) {
    all = static_cast<std::size_t>(facts.st_size);
    base = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    ::close(fd);
    return nullptr;
  }
  std::shared_ptr<Storage> storage(new Storage(fd, base, all));
  const SharedPage& page = storage->page();
  const bool right = page.id == id && page.random == random && page.freed == 0 &&
                     page.bytes == all - SharedPage::kBytes;
  return right ? storage : nullptr;
}

void Storage::import(bool mapped) {
  const int own = ::getpid();
  for (auto& importer : page().importers) {
    int before = mapped ? 0 : own;
    // The place of a process that died is free again.
    if (mapped && importer != 0 && !process_of(importer).lives) before = importer;
    if (importer.compare_exchange_strong(before, mapped ? own : 0)) return;
  }
  if (mapped)
    report("more than " + std::to_string(SharedPage::kMaxImporters) + " processes share memory");
}

int Storage::importers() const {
  int count = 0;
  for (const auto& importer : page().importers)
    count += importer != 0 && process_of(importer).lives ? 1 : 0;
  return count;
}

Process process_of(int id) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/%d/stat", id);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[1024];
  const ssize_t bytes = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (bytes <= 0) return {};
  const std::string_view line(text, static_cast<std::size_t>(bytes));
  // pid (name, which may hold anything) state ...: the start time is field 22.
  std::size_t at = line.rfind(')');
  if (at == std::string_view::npos || at + 2 >= line.size()) return {};
  Process process{.lives = line[at + 2] != 'Z' && line[at + 2] != 'X'};
  for (int field = 2; field < 22 && at != std::string_view::npos; ++field)
    at = line.find(' ', at + 1);
  if (at == std::string_view::npos) return {};
  for (++at; at < line.size() && line[at] >= '0' && line[at] <= '9'; ++at)
    process.started = process.started * 10 + static_cast<std::uint64_t>(line[at] - '0');
  return process;
}

}  // namespace emulated_cuda
