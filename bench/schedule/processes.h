// Processes that are forked, not started anew: ranks of a benchmark that share what was made before
// and nothing that is made later.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/harness/child.h"
#include "shared/base/error.h"

namespace wsync::bench {

// What a forked process tells its launcher. Thread: one.
class LineWriter {
 public:
  explicit LineWriter(int fd) noexcept : fd_(fd) {}  // borrowed
  // `line` has no line end.
  [[nodiscard]] Result<> write(std::string line) const;

 private:
  int fd_;
};

struct ProcessHooks {
  // In the process of `rank`, which ends when it returns, without destructors of what was made
  // before and without handlers of exit.
  std::function<Result<>(std::uint32_t rank, const LineWriter& out)> body;
  std::function<void(std::uint32_t rank, std::string line)> on_line;
  // The first failure, once: to end what other processes wait for.
  std::function<void(const Error&)> on_failure;
};

// Forks `count` processes and returns when all have ended: success, or the first failure, of which
// kPeerLost says which rank ended how. kCancelled on a signal, when all have been killed. They die
// with the thread that calls. Thread: the process has no other one.
[[nodiscard]] Result<> run_processes(std::uint32_t count, const ProcessHooks& hooks,
                                     const Interrupt& interrupt);

}  // namespace wsync::bench
