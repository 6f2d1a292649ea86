// Offset between the clock of another process and ours, measured with one message exchange. It uses
// four timestamps, as the Network Time Protocol does (RFC 5905, section 8).
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "shared/base/clock.h"
#include "shared/base/kinds.h"

namespace wsync::trace {

struct ClockExchange {
  TimePoint asked{};     // our clock: request sent
  TimePoint received{};  // their clock: request received
  TimePoint answered{};  // their clock: response sent
  TimePoint heard{};     // our clock: response received
};

[[nodiscard]] std::string_view clock_kind_name(ClockKind kind) noexcept;

struct ClockReading {
  ClockKind kind = ClockKind::kUnknown;
  std::chrono::nanoseconds offset{0};  // their clock minus ours
  // The true offset lies within offset +- uncertainty, however the travel time is divided between
  // the two directions.
  std::chrono::nanoseconds uncertainty{0};
};

// offset = ((received - asked) + (answered - heard)) / 2. uncertainty = half of the total travel
// time. The offset is exact if both directions take equally long. kUnknown if the timestamps are
// inconsistent: an end before its begin, or a response that took them longer than the whole
// exchange took us.
[[nodiscard]] ClockReading clock_offset(const ClockExchange& exchange) noexcept;

// Returns the more precise of two readings of one clock.
[[nodiscard]] ClockReading better_of(const ClockReading& a, const ClockReading& b) noexcept;

// Reading for two processes that report the same boot of the same kernel and therefore share a
// monotonic clock: offset 0, uncertainty 0. If the measured offset contradicts this (a time
// namespace), returns `measured`.
[[nodiscard]] ClockReading on_one_host(const ClockReading& measured) noexcept;

}  // namespace wsync::trace
