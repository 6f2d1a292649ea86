// MemoryGate: keeps driver calls that wait for running kernels apart from broadcasts.
//
// Some calls that give memory back, such as cuMemHostUnregister and cuMemFree, return only when the
// kernels that run on the GPU have ended. A broadcast has one kernel on each GPU, and each waits
// for the others. If such a call waits for the kernel of one GPU and holds the driver's lock, the
// kernel of another GPU cannot be launched, and both wait until a deadline. Therefore a run of the
// pipeline, or the connection of its devices, and such a call exclude each other. Runs go first: a
// call waits until none is on.
//
// One for a process. Thread: any.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "shared/base/planted.h"

namespace wsync::device {

class MemoryGate {
 public:
  // Held by the thread that drives a run, for as long as its kernels may be on.
  [[nodiscard]] static std::shared_lock<std::shared_mutex> run() {
    return std::shared_lock(mutex());
  }
  // Held for one call, which must be short, because a run waits for it. It waits until no run is
  // on, which the deadline of the run limits. So it may not be called on a loop thread.
  [[nodiscard]] static std::unique_lock<std::shared_mutex> memory_call() {
    if (planted("memory_call_beside_a_run")) return std::unique_lock(mutex(), std::defer_lock);
    return std::unique_lock(mutex());
  }

 private:
  static std::shared_mutex& mutex() {
    static std::shared_mutex own;
    return own;
  }
};

}  // namespace wsync::device
