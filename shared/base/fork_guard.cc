#include "shared/base/fork_guard.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/unique_fd.h"

namespace wsync {
namespace {

// The kernel's default maximum of descriptors of one process. A descriptor above it is not closed
// in a child.
constexpr std::size_t kDescriptors = 1U << 20U;
constexpr std::size_t kOwnedBits = 64;
constexpr std::size_t kListeners = 256;  // of one process

// How many ForkGates there are. fork() keeps the mutex, so that none begins meanwhile.
std::mutex fork_gate;
// Of pthread, because it must need no constructor and no destructor: descriptors are made before
// main() begins, and closed after it has returned.
constexpr pthread_cond_t kNobodyWaits = PTHREAD_COND_INITIALIZER;
pthread_cond_t fork_gate_is_free = kNobodyWaits;
std::size_t fork_gates = 0;
std::array<std::atomic<std::uint64_t>, kDescriptors / kOwnedBits>
    owned_fds;  // one bit per descriptor
// Number of forks between the first process and this one. It changes only in a forked child, which
// has one thread.
std::uint64_t fork_count = 0;

// ---- Runs in the child: one thread, and no memory is allocated. ----

template <class Visit>
void for_each_owned(Visit visit) {
  for (std::size_t word = 0; word < owned_fds.size(); ++word)
    for (std::uint64_t bits = owned_fds[word]; bits != 0; bits &= bits - 1)
      visit(static_cast<int>(word * kOwnedBits + static_cast<std::size_t>(std::countr_zero(bits))));
}

// Local address of a socket. read() returns false for other descriptors.
struct LocalAddress {
  sockaddr_storage address;
  socklen_t bytes;
  bool read(int fd) {
    bytes = sizeof address;
    return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  }
};

template <class Address>
Address as(const LocalAddress& from) {
  Address address{};
  std::memcpy(&address, &from.address, sizeof address);
  return address;
}

// Returns whether a socket with this address was accepted by that listener, or is the listener.
bool is_of(const LocalAddress& listener, const LocalAddress& local) {
  if (local.address.ss_family != listener.address.ss_family) return false;
  if (local.address.ss_family == AF_INET) {
    const auto at = as<sockaddr_in>(listener);
    const auto own = as<sockaddr_in>(local);
    return at.sin_port == own.sin_port &&
           (at.sin_addr.s_addr == htonl(INADDR_ANY) || at.sin_addr.s_addr == own.sin_addr.s_addr);
  }
  if (local.address.ss_family == AF_INET6) {
    const auto at = as<sockaddr_in6>(listener);
    const auto own = as<sockaddr_in6>(local);
    return at.sin6_port == own.sin6_port && (IN6_IS_ADDR_UNSPECIFIED(&at.sin6_addr) ||
                                             IN6_ARE_ADDR_EQUAL(&at.sin6_addr, &own.sin6_addr));
  }
  return local.address.ss_family == AF_UNIX && local.bytes > sizeof(sa_family_t) &&
         local.bytes == listener.bytes &&
         std::memcmp(&local.address, &listener.address, local.bytes) == 0;
}

std::array<LocalAddress, kListeners> listeners;

std::size_t find_listeners() {
  std::size_t count = 0;
  for_each_owned([&](int fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (count < kListeners && ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
        listens != 0 && listeners[count].read(fd))
      ++count;
  });
  return count;
}

void close_if_of(int fd, std::size_t listener_count) {
  LocalAddress local{};
  if (!local.read(fd)) return;
  for (std::size_t i = 0; i < listener_count; ++i)
    if (is_of(listeners[i], local)) {
      ::close(fd);
      return;
    }
}

// Scans the open descriptors, because libraries do not report the connections that they accept.
// Uses getdents64 directly, because opendir() allocates memory.
void close_accepted(std::size_t listener_count) {
  const int list = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(8) std::array<char, 4096> entries{};
  for (long bytes = 0;
       (bytes = ::syscall(SYS_getdents64, list, entries.data(), entries.size())) > 0;) {
    for (long at = 0; at < bytes;) {
      // struct linux_dirent64: u64 inode, s64 offset, u16 size, u8 type, name.
      const char* entry = entries.data() + at;
      std::uint16_t size = 0;
      std::memcpy(&size, entry + 16, sizeof size);
      int fd = -1;
      for (const char* digit = entry + 19; *digit >= '0' && *digit <= '9'; ++digit)
        fd = (fd < 0 ? 0 : fd) * 10 + (*digit - '0');
      if (fd >= 0) close_if_of(fd, listener_count);
      at += size;
    }
  }
  ::close(list);
}

void before_fork() {
  log_mutex()
      .lock();  // first: standard error may be slow, and others can create descriptors meanwhile
  fork_gate.lock();  // after_fork() unlocks it
  while (fork_gates != 0) ::pthread_cond_wait(&fork_gate_is_free, fork_gate.native_handle());
}

void after_fork() {
  fork_gate.unlock();
  log_mutex().unlock();
}

void in_forked_child() {
  ++fork_count;
  if (!planted("child_keeps_descriptors")) {
    const std::size_t count = planted("child_keeps_accepted") ? 0 : find_listeners();
    if (count != 0) close_accepted(count);
    for_each_owned([](int fd) { ::close(fd); });
  }
  for (auto& word : owned_fds)
    if (word != 0) word = 0;         // no needless write, which would copy the page
  fork_gate_is_free = kNobodyWaits;  // other threads that fork have waited in the parent only
  after_fork();
}

}  // namespace

bool close_descriptors_in_children() {
  static const bool registered = ::pthread_atfork(before_fork, after_fork, in_forked_child) == 0;
  return registered;
}

void note_owned(int fd) noexcept {
  const auto at = static_cast<std::size_t>(fd);
  if (at < kDescriptors) owned_fds[at / kOwnedBits] |= std::uint64_t{1} << at % kOwnedBits;
}

void close_owned(int fd) noexcept {
  const auto at = static_cast<std::size_t>(fd);
  // Clearing the bit and closing are one step for fork(). A child created in between would keep the
  // descriptor open.
  const ForkGate both_or_none;
  if (at < kDescriptors) owned_fds[at / kOwnedBits] &= ~(std::uint64_t{1} << at % kOwnedBits);
  ::close(fd);
}

ForkGate::ForkGate() noexcept {
  const std::lock_guard lock(fork_gate);
  ++fork_gates;
}

ForkGate::~ForkGate() {
  const std::lock_guard lock(fork_gate);
  if (--fork_gates == 0) ::pthread_cond_broadcast(&fork_gate_is_free);
}

HomeProcess::HomeProcess() noexcept : forks_(fork_count), pid_(::getpid()) {}

bool HomeProcess::is_here() const noexcept { return forks_ == fork_count && pid_ == ::getpid(); }

Result<> HomeProcess::check(std::string_view what) const {
  if (is_here()) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("this {0} belongs to process {1}, which forked the current process "
                          "({2}): use the {0} there, and create another one here",
                          what, pid_, ::getpid()));
}

}  // namespace wsync
