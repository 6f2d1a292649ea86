// Forked processes: ranks of a benchmark that share everything created before the fork and nothing
// created later.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/harness/child.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Sends messages of a forked process to its launcher. Thread: one.
class LineWriter {
 public:
  explicit LineWriter(int fd) noexcept : fd_(fd) {}  // borrowed
  // `line` has no line end.
  [[nodiscard]] Result<> write(std::string line) const;

 private:
  int fd_;
};

struct ProcessHooks {
  // Runs in the process of `rank`, which exits when it returns. Destructors of objects from before
  // the fork and exit handlers do not run.
  std::function<Result<>(std::uint32_t rank, const LineWriter& out)> body;
  std::function<void(std::uint32_t rank, std::string line)> on_line;
  // Called once with the first failure, so that the caller can end the waits of other processes.
  std::function<void(const Error&)> on_failure;
};

// Forks `count` processes and returns when all have ended: success or the first failure. kPeerLost
// says which rank ended and how. kCancelled on a signal, after all processes have been killed. The
// processes die with the calling thread. Thread: this must be the only thread of the process.
[[nodiscard]] Result<> run_processes(std::uint32_t count, const ProcessHooks& hooks,
                                     const Interrupt& interrupt);

}  // namespace wsync::bench
