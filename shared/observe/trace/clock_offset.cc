#include "shared/observe/trace/clock_offset.h"

namespace wsync::trace {

std::string_view clock_kind_name(ClockKind kind) noexcept {
  switch (kind) {
    case ClockKind::kSame:
      return "same";
    case ClockKind::kMeasured:
      return "measured";
    case ClockKind::kUnknown:
      return "unknown";
  }
  return "unknown";
}

ClockReading clock_offset(const ClockExchange& exchange) noexcept {
  // Readings come from other processes. This limit keeps every sum below from overflowing.
  constexpr std::int64_t kMax = std::int64_t{1} << 61U;
  for (const TimePoint at : {exchange.asked, exchange.received, exchange.answered, exchange.heard})
    if (at < TimePoint{0} || at > TimePoint{kMax}) return {};
  const std::chrono::nanoseconds ours = exchange.heard - exchange.asked;
  const std::chrono::nanoseconds theirs = exchange.answered - exchange.received;
  if (ours.count() < 0 || theirs.count() < 0 || theirs > ours) return {};
  const std::chrono::nanoseconds there = exchange.received - exchange.asked;
  const std::chrono::nanoseconds back = exchange.answered - exchange.heard;
  // Each term is halved first so that the sum cannot overflow. Rounding costs at most one
  // nanosecond.
  const std::chrono::nanoseconds sum = there / 2 + back / 2 + (there % 2 + back % 2) / 2;
  return {.kind = ClockKind::kMeasured,
          .offset = sum,
          .uncertainty = (ours - theirs + std::chrono::nanoseconds(1)) / 2};
}

ClockReading better_of(const ClockReading& a, const ClockReading& b) noexcept {
  if (a.kind != b.kind) return a.kind < b.kind ? a : b;
  return b.uncertainty < a.uncertainty ? b : a;
}

ClockReading on_one_host(const ClockReading& measured) noexcept {
  if (measured.kind == ClockKind::kMeasured &&
      (measured.offset > measured.uncertainty || measured.offset < -measured.uncertainty))
    return measured;
  return {.kind = ClockKind::kSame};
}

}  // namespace wsync::trace
