// Another process of the same test program, for what only two processes can show: it runs one
// disabled test, and both talk over a socket.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <poll.h>
#include <span>
#include <spawn.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/unique_fd.h"
#include "shared/base/unix_socket.h"
#include "shared/device/device.h"

namespace wsync::device {

inline constexpr int kChildSocket = 3;
inline constexpr int kChildDeadlineMs = 60'000;  // only a hang reaches it

// All bytes, or false when the other side is gone.
inline bool send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}
inline bool receive_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kChildDeadlineMs) <= 0) return false;
    const auto n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}
template <class T>
bool send_value(int fd, const T& value) {
  return send_all(fd, std::as_bytes(std::span(&value, 1)));
}
template <class T>
bool receive_value(int fd, T& value) {
  return receive_all(fd, std::as_writable_bytes(std::span(&value, 1)));
}
// A count, then the bytes; a test's own message, of a process that it started.
inline bool send_bytes(int fd, const Bytes& bytes) {
  return send_value(fd, bytes.size()) && send_all(fd, bytes);
}
inline bool receive_bytes(int fd, Bytes& bytes) {
  std::size_t n = 0;
  if (!receive_value(fd, n) || n > 4096) return false;
  bytes.resize(n);
  return receive_all(fd, bytes);
}

// A handle of memory, with its descriptor.
inline bool send_handle(int fd, const MemoryHandle& handle) {
  const std::byte byte{1};
  const int own = handle.fd.get();
  const auto sent = send_some(fd, {&byte, 1}, {&own, 1});
  return sent && *sent == 1 && send_value(fd, handle.bytes) && send_bytes(fd, handle.opaque);
}
inline bool receive_handle(int fd, MemoryHandle& handle) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  if (::poll(&wait, 1, kChildDeadlineMs) <= 0) return false;
  std::byte byte{};
  std::vector<UniqueFd> fds;
  if (!receive_some(fd, {&byte, 1}, fds) || fds.size() != 1) return false;
  handle.kind = DeviceKind::kCuda;
  handle.fd = std::move(fds.front());
  return receive_value(fd, handle.bytes) && receive_bytes(fd, handle.opaque);
}

class ChildProcess {
 public:
  // Runs the test "Suite.DISABLED_name" of this program, which finds its socket at kChildSocket.
  explicit ChildProcess(const std::string& test) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::vector<std::string> words = {"/proc/self/exe", "--gtest_filter=" + test,
                                      "--gtest_also_run_disabled_tests"};
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    // A new program, not a fork: a child cannot use CUDA that its parent has used.
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kChildSocket);
    EXPECT_EQ(::posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~ChildProcess() {
    if (pid_ > 0) static_cast<void>(end(SIGKILL));
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  // Its wait status; `signal` 0 waits for it to end by itself.
  int end(int signal) {
    if (signal != 0) ::kill(pid_, signal);
    int status = -1;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

}  // namespace wsync::device
