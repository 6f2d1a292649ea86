// What keeps a loop: while one callback runs, no other one of that loop does, so heartbeats and
// deadlines are late. Every callback is measured. One that keeps its loop too long is named in the
// log, by the place in the source where its timer, watcher or task was made.
//
// Measured is the time that the callback spends on a processor or blocked. The time that it waits
// for a processor is left out: that is the machine's load, and moving the work to another thread
// would not help. A sleep, a lock or a disc that it waits for counts in full.
#pragma once

#include <chrono>
#include <cstdint>
#include <source_location>
#include <string_view>

#include "shared/base/clock.h"

namespace wsync {

class Loop;

// A callback that takes this long is told in the log. Sanitizers make everything slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::milliseconds kSlowCallback{1'000};
#else
inline constexpr std::chrono::milliseconds kSlowCallback{100};
#endif

// Of one loop since it was made.
struct LoopLag {
  std::chrono::nanoseconds longest{0};  // that one callback kept it
  std::uint64_t slow_callbacks = 0;     // that kept it for kSlowCallback or longer
};

// What a callback is called in the log.
struct CallbackName {
  std::string_view kind;       // "timer", "message"; lives as long as the process
  std::string_view what = {};  // "Announce"; likewise
  std::source_location made;   // where it was made
};

// Measures what runs during its life as one callback of the loop. May be nested: what an inner one
// has told is not told again by the outer one. Takes no memory. Thread: the loop's.
class CallbackTime {
 public:
  CallbackTime(Loop& loop, CallbackName name);
  ~CallbackTime();
  CallbackTime(const CallbackTime&) = delete;
  CallbackTime& operator=(const CallbackTime&) = delete;

 private:
  Loop& loop_;
  const CallbackName name_;
  const TimePoint begin_;
  const std::chrono::nanoseconds waited_before_;  // for a processor, by this thread
  const std::chrono::nanoseconds told_before_;
};

}  // namespace wsync
