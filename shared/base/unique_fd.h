// UniqueFd: sole owner of a file descriptor. A child created by fork() closes it (fork_guard.h).
#pragma once

#include <unistd.h>
#include <utility>

#include "shared/base/fork_guard.h"

namespace wsync {

// Only for UniqueFd: they record which descriptors a forked child has to close.
void note_owned(int fd) noexcept;
void close_owned(int fd) noexcept;

class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {
    if (fd_ >= 0) note_owned(fd_);
  }
  // Owns the descriptor that `make` returns. The gate is held meanwhile, so that no fork() can
  // happen before a UniqueFd owns it.
  template <class Make>
  [[nodiscard]] static UniqueFd made_by(Make make) {
    const ForkGate gate;
    return UniqueFd(make());
  }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) close_owned(fd_);
    fd_ = fd;
    if (fd_ >= 0) note_owned(fd_);
  }

 private:
  int fd_ = -1;
};

}  // namespace wsync
