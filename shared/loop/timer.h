// Timer: calls back once or periodically on its loop.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <source_location>

#include "shared/base/clock.h"
#include "shared/loop/loop.h"

namespace wsync {

// Thread: the loop's. May be destroyed or restarted inside its callback.
class Timer {
 public:
  // If the callback blocks the loop too long, the log names `made` (lag.h).
  Timer(Loop& loop, std::function<void()> on_fire,
        std::source_location made = std::source_location::current());
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer();  // a pending callback does not run any more

  // Fires once, not earlier than `delay` from now (1 ms resolution). Replaces an earlier start.
  void start(std::chrono::nanoseconds delay);
  // Fires once when now() >= `time`. A time in the past fires in the next iteration of the loop.
  void start_at(TimePoint time) { start(time - now()); }
  // Fires every `interval` (at least 1 ms), first after one interval.
  void start_repeating(std::chrono::milliseconds interval);
  void stop();
  [[nodiscard]] bool active() const noexcept;

 private:
  struct State;
  State* state_;  // freed by the loop after its close callback
};

}  // namespace wsync
