// Time for all state machines: nanoseconds of a monotonic clock. The caller passes it with each
// event.
#pragma once

#include <chrono>
#include <cstdint>

namespace wsync {

// Nanoseconds since an arbitrary start; only differences are meaningful. All processes of one host
// share this clock.
enum class TimePoint : std::int64_t {};

[[nodiscard]] inline TimePoint now() noexcept {
  return TimePoint{std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::steady_clock::now().time_since_epoch())
                       .count()};
}
[[nodiscard]] constexpr TimePoint operator+(TimePoint t, std::chrono::nanoseconds d) noexcept {
  return TimePoint{static_cast<std::int64_t>(t) + d.count()};
}
[[nodiscard]] constexpr std::chrono::nanoseconds operator-(TimePoint a, TimePoint b) noexcept {
  return std::chrono::nanoseconds{static_cast<std::int64_t>(a) - static_cast<std::int64_t>(b)};
}
// Converts to the time type of the standard library's waits. now() reads the same clock.
[[nodiscard]] constexpr std::chrono::steady_clock::time_point steady_time(TimePoint t) noexcept {
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<std::int64_t>(t)));
}
[[nodiscard]] constexpr double seconds(std::chrono::nanoseconds d) noexcept {
  return static_cast<double>(d.count()) * 1e-9;
}

}  // namespace wsync
