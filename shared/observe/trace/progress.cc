#include "shared/observe/trace/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sys/ioctl.h>

#include "shared/base/format.h"

namespace wsync::trace {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr unsigned kColumnsUnknown = 80;
constexpr unsigned kColumnsOfPlainLines = 120;

// Formats three significant digits: "1.50", "15.0", "150".
std::string three_digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

unsigned terminal_columns(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsUnknown;
  return size.ws_col;
}

void write_terminal(int fd, std::string_view text) {
  // Errors are ignored: a terminal that has closed only loses the progress line.
  [[maybe_unused]] const auto written = ::write(fd, text.data(), text.size());
}

std::string time_left(const ProgressState& state) {
  if (state.elapsed.count() <= 0 || state.total_bytes == 0 || state.done_bytes == 0 ||
      state.done_bytes >= state.total_bytes)
    return {};
  const double share = static_cast<double>(state.total_bytes - state.done_bytes) /
                       static_cast<double>(state.done_bytes);
  const auto left = static_cast<double>(state.elapsed.count()) * share;
  return ", " + format_duration(std::chrono::nanoseconds(std::llround(left))) + " left";
}

std::string bar(double share, unsigned cells) {
  const auto full = static_cast<unsigned>(share * cells);
  return "[" + std::string(full, '#') + std::string(cells - full, ' ') + "]";
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string format_rate(std::uint64_t bytes, std::chrono::nanoseconds elapsed) {
  if (elapsed.count() <= 0) return "-";
  const double per_second = static_cast<double>(bytes) / seconds(elapsed);
  if (per_second < 1e6) return three_digits(per_second / 1e3) + " kB/s";
  if (per_second < 1e9) return three_digits(per_second / 1e6) + " MB/s";
  return three_digits(per_second / 1e9) + " GB/s";
}

std::string format_duration(std::chrono::nanoseconds t) {
  const double s = seconds(t);
  if (s < 0.9995) return fmt::format("{:.1f} ms", s * 1e3);
  if (s < 59.95) return fmt::format("{:.1f} s", s);
  const auto whole = static_cast<std::int64_t>(std::llround(s));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string progress_text(const ProgressState& state, unsigned columns) {
  const bool known = state.total_bytes > 0;
  const double share = known ? std::min(1.0, static_cast<double>(state.done_bytes) /
                                                 static_cast<double>(state.total_bytes))
                             : 0;
  const std::string amount = known ? fmt::format("{} of {}", format_bytes(state.done_bytes),
                                                 format_bytes(state.total_bytes))
                                   : format_bytes(state.done_bytes);
  const std::string tail = fmt::format(
      "{}, {}{}", amount, format_rate(state.done_bytes, state.elapsed), time_left(state));
  constexpr unsigned kBar = 24;
  std::string line = state.label + "  ";
  if (known && line.size() + kBar + 10 + tail.size() <= columns)
    line += fmt::format("{} {:3.0f} %  ", bar(share, kBar), std::floor(share * 100));
  line += tail;
  if (line.size() > columns) line.resize(columns);
  return line;
}

ProgressLine::ProgressLine(int fd, PlainLines plain)
    : fd_(fd), visible_(::isatty(fd) == 1), plain_(std::move(plain)) {}

ProgressLine::~ProgressLine() {
  if (drawn_) erase();
}

void ProgressLine::update(std::string_view label, std::uint64_t done_bytes,
                          std::uint64_t total_bytes, TimePoint at) {
  if (!visible_ && plain_.every.count() == 0) return;
  const bool fresh = label != state_.label;
  if (fresh) begin_ = at;
  state_ = {.label = std::string(label),
            .done_bytes = done_bytes,
            .total_bytes = total_bytes,
            .elapsed = at - begin_};
  if (!visible_) return draw_plain(at);
  if (fresh || at - last_ >= kRedraw) draw(at);
}

void ProgressLine::finish(TimePoint at) {
  if (!visible_ || state_.label.empty()) return;
  draw(at);
  write_terminal(fd_, "\n");
  drawn_ = false;
  state_ = {};
}

// One column stays free because a full line would wrap.
void ProgressLine::draw(TimePoint at) {
  write_terminal(fd_, "\r\x1b[K" + progress_text(state_, terminal_columns(fd_) - 1));
  last_ = at;
  drawn_ = true;
}

void ProgressLine::draw_plain(TimePoint at) {
  if (!plain_last_) plain_last_ = at;
  if (at - *plain_last_ < plain_.every) return;
  plain_last_ = at;
  write_terminal(fd_, plain_.prefix + progress_text(state_, kColumnsOfPlainLines) + "\n");
}

void ProgressLine::erase() {
  write_terminal(fd_, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace wsync::trace
