// ProcessWatch: calls back on a loop when another process has ended (shared/base/process_fd.h).
#pragma once

#include <functional>
#include <memory>
#include <source_location>
#include <sys/types.h>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/loop/fd_watcher.h"
#include "shared/loop/loop.h"

namespace wsync {

// Thread: the loop's. May be destroyed inside its callback.
class ProcessWatch {
 public:
  // Errors as open_process(). `on_end` is called once, on the loop.
  [[nodiscard]] static Result<std::unique_ptr<ProcessWatch>> create(
      Loop& loop, pid_t pid, std::function<void()> on_end,
      std::source_location made = std::source_location::current());
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // Whether the process has ended. Also true before `on_end` has been called.
  [[nodiscard]] bool has_ended() const noexcept;

 private:
  explicit ProcessWatch(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;  // declared first: it must outlive the watcher
  std::unique_ptr<FdWatcher> watcher_;
};

}  // namespace wsync
