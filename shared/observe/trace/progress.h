// Progress line of a command: bytes, rate and remaining time. On a terminal it is redrawn in place.
// Elsewhere it is either disabled or printed as plain lines at intervals.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>

#include "shared/base/clock.h"

namespace wsync::trace {

// Formats "0 B", "512 B", "1.50 MiB": binary units, three digits.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);
// Formats "12.3 GB/s" in decimal units, as network links are specified; "-" if the duration is
// zero.
[[nodiscard]] std::string format_rate(std::uint64_t bytes, std::chrono::nanoseconds elapsed);
// Formats "3.2 ms", "4.1 s", "2 min 05 s", "1 h 02 min".
[[nodiscard]] std::string format_duration(std::chrono::nanoseconds t);

struct ProgressState {
  std::string label;  // "staging 0.3"
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // 0: unknown
  std::chrono::nanoseconds elapsed{0};
};
// Returns one line of at most `columns` characters: label, bar (if it fits), bytes, rate and
// remaining time.
[[nodiscard]] std::string progress_text(const ProgressState& state, unsigned columns);

// Plain lines for output that is not a terminal: one line at most per interval, without control
// characters. Interval 0: no lines.
struct PlainLines {
  std::chrono::nanoseconds every{0};
  std::string prefix;  // "wsync push: "
};

// Draws the progress on a descriptor if it is a terminal. Not thread-safe; owned by the command.
// The destructor erases an unfinished line, so that an error message stands alone.
class ProgressLine {
 public:
  // `fd` is borrowed. Timing starts with the first update.
  explicit ProgressLine(int fd = STDERR_FILENO, PlainLines plain = {});
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Redraws at most ten times per second. A new label restarts the measurement of rate and
  // remaining time.
  void update(std::string_view label, std::uint64_t done_bytes, std::uint64_t total_bytes,
              TimePoint at);
  // Draws the last state and ends the line.
  void finish(TimePoint at);
  [[nodiscard]] bool visible() const noexcept { return visible_; }

 private:
  void draw(TimePoint at);
  void draw_plain(TimePoint at);
  void erase();

  int fd_;
  bool visible_;
  PlainLines plain_;
  std::optional<TimePoint> plain_last_;  // time of the last plain line, or of the first update
  bool drawn_ = false;
  ProgressState state_;
  TimePoint begin_{};
  TimePoint last_{};
};

}  // namespace wsync::trace
