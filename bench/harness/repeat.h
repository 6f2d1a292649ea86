// Repeats calls that are too short to be timed one by one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "shared/base/clock.h"

namespace wsync::bench {

inline constexpr std::chrono::milliseconds kRepeatFill{5};  // duration of the calls of one sample

// Makes the compiler assume that `value` and all memory are read here.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

// Returns the nanoseconds per call of `work`: the mean of as many calls as take about kRepeatFill,
// but at least one. `times` is that number. The first call, with 0, determines it, and the caller
// keeps it.
template <class Work>
[[nodiscard]] double ns_per_call(Work&& work, std::uint64_t& times) {
  const auto run = [&work](std::uint64_t count) {
    const TimePoint begin = now();
    for (std::uint64_t i = 0; i < count; ++i) work();
    return static_cast<double>(std::max<std::int64_t>((now() - begin).count(), 1));
  };
  constexpr double kFillNs = std::chrono::nanoseconds(kRepeatFill).count();
  if (times == 0)
    for (times = 1;; times *= 2)
      if (const double taken = run(times); taken >= kFillNs / 2)
        return taken / static_cast<double>(times);
  return run(times) / static_cast<double>(times);
}

}  // namespace wsync::bench
