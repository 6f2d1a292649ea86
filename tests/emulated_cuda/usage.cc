#include "tests/emulated_cuda/usage.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/emulated_cuda/settings.h"

namespace emulated_cuda {
namespace {

// What the system says of a process.
struct Process {
  bool lives = false;         // and has not only to be reaped
  std::uint64_t started = 0;  // tells it from a later one of the same number
};

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

class Ledger {
 public:
  Ledger() {
    const std::string& path = settings().machine;
    fd_ = path.empty() ? ::memfd_create("emulated_cuda_usage", MFD_CLOEXEC)
                       : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    void* base = MAP_FAILED;
    if (fd_ >= 0 && ::ftruncate(fd_, sizeof(Usage)) == 0)
      base = ::mmap(nullptr, sizeof(Usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (base == MAP_FAILED) {
      std::fprintf(stderr, "emulated driver: WSYNC_EMULATED_CUDA_MACHINE '%s' cannot be mapped\n",
                   path.c_str());
      std::abort();
    }
    usage_ = static_cast<Usage*>(base);
  }

  // Everything is done under the file's lock, which a process that dies lets go.
  template <class Body>
  auto locked(Body&& body) {
    const std::scoped_lock lock(mutex_);
    while (::flock(fd_, LOCK_EX) != 0) {
    }
    auto result = body(*usage_);
    ::flock(fd_, LOCK_UN);
    return result;
  }

 private:
  std::mutex mutex_;
  int fd_ = -1;
  Usage* usage_ = nullptr;
};

Ledger& ledger() {
  static auto* const one = new Ledger();
  return *one;
}

std::uint64_t sum(Usage& usage, int number) {
  std::uint64_t all = 0;
  for (auto& taken : usage.of) {
    if (taken.process == 0) continue;
    const Process process = process_of(static_cast<int>(taken.process));
    if (process.lives && process.started == taken.started)
      all += taken.bytes[number];
    else
      taken = {};  // with a process its memory goes
  }
  return all;
}

Usage::Taken& own_row(Usage& usage) {
  const auto process = static_cast<std::uint64_t>(::getpid());
  for (auto& taken : usage.of) {
    if (taken.process == process) return taken;
  }
  for (auto& taken : usage.of) {
    if (taken.process != 0) continue;
    taken = {.process = process, .started = process_of(::getpid()).started, .bytes = {}};
    return taken;
  }
  std::fprintf(stderr, "emulated driver: more than %d processes\n", Usage::kMaxProcesses);
  std::abort();
}

}  // namespace

bool take(int number, std::uint64_t bytes) {
  return ledger().locked([&](Usage& usage) {
    const std::uint64_t before = sum(usage, number);
    const std::uint64_t total = settings().memory_bytes;
    if (bytes > total || before > total - bytes) return false;
    own_row(usage).bytes[number] += bytes;
    usage.peak[number] = std::max(usage.peak[number], before + bytes);
    return true;
  });
}

void give_back(int number, std::uint64_t bytes) {
  (void)ledger().locked([&](Usage& usage) { return own_row(usage).bytes[number] -= bytes; });
}

std::uint64_t taken(int number) {
  return ledger().locked([&](Usage& usage) { return sum(usage, number); });
}

}  // namespace emulated_cuda
