// How far the clock of another process is from ours, from one exchange of messages: four readings,
// as the Network Time Protocol takes them (RFC 5905, section 8).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "shared/base/clock.h"

namespace wsync::trace {

struct ClockExchange {
  TimePoint asked{};     // ours
  TimePoint received{};  // theirs: the question was there
  TimePoint answered{};  // theirs: the answer was sent
  TimePoint heard{};     // ours
};

enum class ClockKind : std::uint8_t {
  kSame,      // one clock: nothing was moved
  kMeasured,  // by an exchange
  kUnknown,   // no exchange made sense: nothing was moved
};
inline constexpr ClockKind kLastClockKind = ClockKind::kUnknown;
[[nodiscard]] std::string_view clock_kind_name(ClockKind kind) noexcept;

struct ClockReading {
  ClockKind kind = ClockKind::kUnknown;
  std::chrono::nanoseconds offset{0};  // theirs minus ours
  // The true offset lies within offset +- this, however the time on the way was shared.
  std::chrono::nanoseconds uncertainty{0};
};

// offset = ((received - asked) + (answered - heard)) / 2, uncertainty = half of the time that was
// spent on the way. Exact where both ways took equally long. kUnknown for readings that no two
// clocks of one speed give: an end before its begin, or an answer that took them longer than us.
[[nodiscard]] ClockReading clock_offset(const ClockExchange& exchange) noexcept;

// Of two readings of one clock, the one that is known better.
[[nodiscard]] ClockReading better_of(const ClockReading& a, const ClockReading& b) noexcept;

// Both processes say that they run on one boot of one kernel, whose monotonic clock is the same for
// all: offset 0 and no uncertainty, unless the measured one rules that out (a time namespace).
[[nodiscard]] ClockReading on_one_host(const ClockReading& measured) noexcept;

}  // namespace wsync::trace
