#include "shared/base/host.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "shared/base/durable_file.h"

namespace wsync {

std::string boot_id() {
  const Result<Bytes> bytes = read_small_file("/proc/sys/kernel/random/boot_id", 256);
  if (!bytes) return {};
  std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

std::uint64_t pid_namespace() {
  struct stat found{};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

bool process_is_gone(std::uint32_t pid) {
  return pid != 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
}

}  // namespace wsync
