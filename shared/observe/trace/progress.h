// The progress line of a command: bytes, speed and time left, redrawn in place on a terminal;
// elsewhere nothing at all, or a plain line now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>

#include "shared/base/clock.h"

namespace wsync::trace {

// "0 B", "512 B", "1.50 MiB": binary units, three digits.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);
// "12.3 GB/s" (decimal units, as links are sold); "-" for no time.
[[nodiscard]] std::string format_rate(std::uint64_t bytes, std::chrono::nanoseconds elapsed);
// "3.2 ms", "4.1 s", "2 min 05 s", "1 h 02 min".
[[nodiscard]] std::string format_duration(std::chrono::nanoseconds t);

struct ProgressState {
  std::string label;  // "staging 0.3"
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // 0 = not known
  std::chrono::nanoseconds elapsed{0};
};
// One line of at most `columns` characters: label, bar where it fits, bytes, speed, time left.
[[nodiscard]] std::string progress_text(const ProgressState& state, unsigned columns);

// Elsewhere than on a terminal: a plain line each time that so much time has passed, none sooner,
// without control characters; 0 = none at all.
struct PlainLines {
  std::chrono::nanoseconds every{0};
  std::string prefix;  // "wsync push: "
};

// Draws on a descriptor if that is a terminal. Not thread-safe; owned by the command. Erases its
// line when destroyed unfinished, so that an error message stands alone.
class ProgressLine {
 public:
  // `fd` is borrowed. Time begins with the first update.
  explicit ProgressLine(int fd = STDERR_FILENO, PlainLines plain = {});
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Redraws, at most ten times a second; a new label starts the clock of speed and time left again.
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
  std::optional<TimePoint> plain_last_;  // the last plain line, or the first update
  bool drawn_ = false;
  ProgressState state_;
  TimePoint begin_{};
  TimePoint last_{};
};

}  // namespace wsync::trace
