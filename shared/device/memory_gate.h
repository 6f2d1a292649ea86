// MemoryGate: keeps driver calls that wait for running kernels apart from broadcasts.
//
// Some calls that give memory back, such as cuMemHostUnregister and cuMemFree, return only when the
// kernels that run on the GPU have ended. A broadcast has one kernel on each GPU, and each waits
// for the others. If such a call waits for the kernel of one GPU and holds the driver's lock, the
// kernel of another GPU cannot be launched, and both wait until a deadline. Therefore a run of the
// pipeline and such a call exclude each other. Runs go first: a call waits until no run is on.
//
// One for a process. Thread: any.
#pragma once

#include <chrono>
#include <mutex>
#include <shared_mutex>

namespace wsync::device {

class MemoryGate {
 public:
  // Held by the thread that drives a run, for as long as its kernels may be on.
  [[nodiscard]] static std::shared_lock<std::shared_timed_mutex> run() {
    return std::shared_lock(mutex());
  }
  // Held for one call, which must be short, because a run waits for it. It is not held if runs have
  // been on for kLimit: memory must be given back in the end.
  [[nodiscard]] static std::unique_lock<std::shared_timed_mutex> memory_call() {
    return std::unique_lock(mutex(), kLimit);
  }
  static constexpr std::chrono::seconds kLimit{30};

 private:
  static std::shared_timed_mutex& mutex() {
    static std::shared_timed_mutex own;
    return own;
  }
};

}  // namespace wsync::device
