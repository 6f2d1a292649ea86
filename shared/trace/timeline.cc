#include "shared/trace/timeline.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "shared/base/format.h"
#include "shared/trace/svg.h"
#include "shared/trace/text_file.h"

namespace wsync::trace {
namespace {

constexpr double kLeft = 96;  // lane names
constexpr double kRight = 28;
constexpr double kTop = 64;          // title and subtitle
constexpr double kPauseHeight = 22;  // labels of pauses
constexpr double kRow = 30;
constexpr double kGap = 6;
constexpr double kAxis = 44;
constexpr double kLegend = 34;
constexpr double kCharWidth = 6.8;  // of 12 px text, on average

struct Style {
  Category category;
  const char* fill;
  const char* stroke;
  const char* legend;
};
constexpr std::array kStyles = {
    Style{Category::kH2D, "#a9cbe8", "#3f76a6", "H2D copy"},
    Style{Category::kBroadcast, "#f7c873", "#b97a12", "broadcast (number: source device)"},
    Style{Category::kReload, "#a8d5a0", "#4c8a41", "reload by the engines"},
    Style{Category::kPause, "#f4f0fa", "#7a66a8", "engines paused"},
    Style{Category::kStage, "#d8dde3", "#6b7785", "staging"},
    Style{Category::kOther, "#e8e0d8", "#8a7560", "other"},
    Style{Category::kForward, "#5b8fd6", "#2f5d9e", "forward"},
    Style{Category::kBackward, "#e0706a", "#a03630", "backward"},
    Style{Category::kExpertParallel, "#e4dff2", "#6d5ca3", "expert parallel"},
    Style{Category::kPipelineParallel, "#7cc48a", "#2f7d40", "pipeline parallel"},
    Style{Category::kOffload, "#f6dc74", "#a88912", "offload, onload"},
};

const Style& style_of(Category category) {
  return *std::find_if(kStyles.begin(), kStyles.end(),
                       [&](const Style& s) { return s.category == category; });
}

double milliseconds(std::chrono::nanoseconds t) { return static_cast<double>(t.count()) / 1e6; }

// About ten ticks.
double tick_step_of(double total_ms) { return tick_step(std::max(total_ms, 1e-6) / 10); }

class Picture {
 public:
  Picture(const std::vector<Span>& spans, const TimelineOptions& options)
      : spans_(spans), options_(options), width_(std::max(options.width_px, 400U)) {
    choose_lanes();
    choose_range();
  }

  std::string draw() {
    begin();
    pauses();
    grid();
    rows();
    for (const Span& s : spans_)
      if (s.category != Category::kPause) cell(s);
    axis();
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void choose_lanes() {
    lanes_ = options_.lanes;
    if (!lanes_.empty()) return;
    for (const Span& s : spans_)
      if (s.category != Category::kPause && row_of(s.lane) == lanes_.size())
        lanes_.push_back(s.lane);
  }
  void choose_range() {
    bool any = false;
    for (const Span& s : spans_) {
      if (!drawn(s)) continue;
      first_ = any ? std::min(first_, s.begin) : s.begin;
      last_ = any ? std::max(last_, s.end) : s.end;
      any = true;
    }
    total_ms_ = std::max(milliseconds(last_ - first_), 1e-3);
  }
  [[nodiscard]] std::size_t row_of(const std::string& lane) const {
    return static_cast<std::size_t>(std::find(lanes_.begin(), lanes_.end(), lane) - lanes_.begin());
  }
  [[nodiscard]] bool drawn(const Span& s) const {
    return s.category == Category::kPause || row_of(s.lane) < lanes_.size();
  }
  [[nodiscard]] double x_of(double ms) const {
    return kLeft + ms / total_ms_ * (static_cast<double>(width_) - kLeft - kRight);
  }
  [[nodiscard]] double x_of(TimePoint t) const { return x_of(milliseconds(t - first_)); }
  [[nodiscard]] static double y_of(std::size_t row) {
    return kTop + kPauseHeight + static_cast<double>(row) * (kRow + kGap);
  }
  [[nodiscard]] double rows_end() const { return y_of(lanes_.size()); }
  [[nodiscard]] double height() const { return rows_end() + kAxis + kLegend; }

  void begin() {
    put(R"(<?xml version="1.0" encoding="UTF-8"?>)");
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1:.0f}" viewBox="0 0 {0} {1:.0f}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12" fill="#1d2530">)",
        width_, height());
    put(R"(<title>{}</title>)", svg_escaped(options_.title));
    put(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    put(R"(<text x="16" y="28" font-size="17" font-weight="bold">{}</text>)",
        svg_escaped(options_.title));
    put(R"(<text x="16" y="48" fill="#55606e">{}</text>)", svg_escaped(options_.subtitle));
  }

  void pauses() {
    const Style& style = style_of(Category::kPause);
    for (const PauseBand& band : pause_bands(spans_)) {
      const double x = x_of(band.begin);
      const double w = std::max(x_of(band.end) - x, 1.0);
      put(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}"/>)", x, kTop, w,
          rows_end() - kTop, style.fill);
      for (const double edge : {x, x + w})
        put(R"(<line x1="{0:.2f}" y1="{1:.1f}" x2="{0:.2f}" y2="{2:.1f}" stroke="{3}" stroke-dasharray="4 3"/>)",
            edge, kTop, rows_end(), style.stroke);
      const std::string text =
          fmt::format("engines paused: {:.1f} ms", milliseconds(band.end - band.begin));
      const bool fits = static_cast<double>(text.size()) * kCharWidth < w;
      const bool right_half = x + w / 2 > static_cast<double>(width_) / 2;
      const double at = fits ? x + w / 2 : right_half ? x + w : x;
      put(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>)", at, kTop + 15,
          fits         ? "middle"
          : right_half ? "end"
                       : "start",
          style.stroke, svg_escaped(text));
    }
  }

  void grid() {
    const double step = tick_step_of(total_ms_);
    for (int i = 1; i * step <= total_ms_ * (1 + 1e-9); ++i)
      put(R"(<line x1="{0:.2f}" y1="{1:.1f}" x2="{0:.2f}" y2="{2:.1f}" stroke="#e1e5ea"/>)",
          x_of(i * step), kTop + kPauseHeight, rows_end());
  }

  void rows() {
    for (std::size_t row = 0; row < lanes_.size(); ++row) {
      put(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 10,
          y_of(row) + kRow / 2 + 4, svg_escaped(lanes_[row]));
      put(R"(<line x1="{:.0f}" y1="{:.1f}" x2="{:.0f}" y2="{:.1f}" stroke="#e1e5ea"/>)", kLeft,
          y_of(row) + kRow + kGap / 2, static_cast<double>(width_) - kRight,
          y_of(row) + kRow + kGap / 2);
    }
  }

  void cell(const Span& s) {
    const std::size_t row = row_of(s.lane);
    if (row >= lanes_.size()) return;
    used_[static_cast<std::size_t>(s.category)] = true;
    const Style& style = style_of(s.category);
    const double x = x_of(s.begin);
    const double w = std::max(x_of(s.end) - x, 0.8);
    const double y = y_of(row);
    put(R"(<g><title>{}: {:.3f} to {:.3f} ms ({:.3f} ms)</title><rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.0f}" rx="2" fill="{}" stroke="{}" stroke-width="0.8"/>)",
        svg_escaped(s.name), milliseconds(s.begin - first_), milliseconds(s.end - first_),
        milliseconds(s.end - s.begin), x, y, w, kRow, style.fill, style.stroke);
    if (!s.label.empty() && static_cast<double>(s.label.size()) * kCharWidth + 3 <= w)
      put(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{}</text>)", x + w / 2,
          y + kRow / 2 + 4, svg_escaped(s.label));
    put("</g>");
  }

  void axis() {
    const double y = rows_end() + 4;
    put(R"(<line x1="{:.0f}" y1="{:.1f}" x2="{:.0f}" y2="{:.1f}" stroke="#1d2530"/>)", kLeft, y,
        static_cast<double>(width_) - kRight, y);
    const double step = tick_step_of(total_ms_);
    const int digits = tick_digits(step);
    for (int i = 0; i * step <= total_ms_ * (1 + 1e-9); ++i) {
      const double x = x_of(i * step);
      put(R"(<line x1="{0:.2f}" y1="{1:.1f}" x2="{0:.2f}" y2="{2:.1f}" stroke="#1d2530"/>)", x, y,
          y + 5);
      put(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{:.{}f}</text>)", x, y + 19, i * step,
          digits);
    }
    put(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end" fill="#55606e">ms</text>)", kLeft - 10,
        y + 19);
  }

  void legend() {
    const double y = rows_end() + kAxis + 4;
    double x = kLeft;
    used_[static_cast<std::size_t>(Category::kPause)] = std::any_of(
        spans_.begin(), spans_.end(), [](const Span& s) { return s.category == Category::kPause; });
    for (const Style& style : kStyles) {
      if (!used_[static_cast<std::size_t>(style.category)]) continue;
      put(R"(<rect x="{:.1f}" y="{:.1f}" width="16" height="12" rx="2" fill="{}" stroke="{}"/>)", x,
          y, style.fill, style.stroke);
      put(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", x + 22, y + 10.5, style.legend);
      x += 22 + static_cast<double>(std::string_view(style.legend).size()) * kCharWidth + 26;
    }
  }

  const std::vector<Span>& spans_;
  const TimelineOptions& options_;
  unsigned width_;
  std::vector<std::string> lanes_;
  TimePoint first_{};
  TimePoint last_{};
  double total_ms_ = 1;
  std::array<bool, kStyles.size()> used_{};
  std::string out_;
};

}  // namespace

std::vector<PauseBand> pause_bands(const std::vector<Span>& spans) {
  std::vector<PauseBand> pauses;
  for (const Span& span : spans)
    if (span.category == Category::kPause) pauses.push_back({.begin = span.begin, .end = span.end});
  std::sort(pauses.begin(), pauses.end(),
            [](const PauseBand& a, const PauseBand& b) { return a.begin < b.begin; });
  std::vector<PauseBand> bands;
  for (const PauseBand& pause : pauses)
    if (!bands.empty() && pause.begin <= bands.back().end)
      bands.back().end = std::max(bands.back().end, pause.end);
    else
      bands.push_back(pause);
  return bands;
}

std::vector<Span> spans_between(const std::vector<Span>& spans, TimePoint begin, TimePoint end) {
  std::vector<Span> between;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(between),
               [&](const Span& span) { return span.begin <= end && span.end >= begin; });
  return between;
}

std::string timeline_svg(const std::vector<Span>& spans, const TimelineOptions& options) {
  return Picture(spans, options).draw();
}

Result<> write_timeline_svg(const std::string& path, const std::vector<Span>& spans,
                            const TimelineOptions& options) {
  return write_text_file(path, timeline_svg(spans, options));
}

}  // namespace wsync::trace
