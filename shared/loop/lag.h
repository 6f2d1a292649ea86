// How long callbacks block a loop. While one callback runs, no other callback of that loop does, so
// heartbeats and deadlines are late. Every callback is measured. If one blocks its loop too long,
// the log names the place in the source where its timer, watcher or task was created.
//
// The measured time is the time that the callback runs on a processor or is blocked. Time that it
// waits for a processor is excluded: this is load of the machine, and moving the work to another
// thread would not help. Sleeps and waits for locks or disks count in full.
#pragma once

#include <chrono>
#include <cstdint>
#include <source_location>
#include <string_view>

#include "shared/base/clock.h"

namespace wsync {

class Loop;

// A callback that takes this long is reported in the log. Sanitizers make everything slower. GCC
// names them by macros, and clang before version 21 only by its features.
#if defined(__has_feature)
#define WSYNC_HAS_FEATURE(name) __has_feature(name)
#else
#define WSYNC_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || WSYNC_HAS_FEATURE(thread_sanitizer)
inline constexpr std::chrono::milliseconds kSlowCallback{1'000};
#elif defined(__SANITIZE_ADDRESS__) || WSYNC_HAS_FEATURE(address_sanitizer)
inline constexpr std::chrono::milliseconds kSlowCallback{200};
#else
inline constexpr std::chrono::milliseconds kSlowCallback{100};
#endif
#undef WSYNC_HAS_FEATURE

// What the kernel has counted for one thread since its creation.
struct ThreadTime {
  std::chrono::nanoseconds ran{0};     // on a processor
  std::chrono::nanoseconds waited{0};  // ready to run, without a processor
};

// Measured for one loop since its creation.
struct LoopLag {
  std::chrono::nanoseconds longest{0};  // longest time of one callback
  std::uint64_t slow_callbacks = 0;     // callbacks of kSlowCallback or longer
};

// Name of a callback in the log.
struct CallbackName {
  std::string_view kind;       // "timer", "message"; static lifetime
  std::string_view what = {};  // "Announce"; static lifetime
  std::source_location made;   // where the callback was created
};

// Measures everything that runs during its lifetime as one callback of the loop. Objects may be
// nested: the outer one does not report again what an inner one has reported. Allocates no memory.
// Thread: the loop's.
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
  const ThreadTime before_;
  const std::chrono::nanoseconds reported_before_;
};

}  // namespace wsync
