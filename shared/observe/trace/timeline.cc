#include "shared/observe/trace/timeline.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "shared/base/format.h"
#include "shared/observe/trace/svg.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::trace {
namespace {

constexpr double kLeftMin = 96;  // for lane names
constexpr double kRight = 28;
constexpr double kTop = 64;          // for title and subtitle
constexpr double kPauseHeight = 22;  // for the labels of pauses
constexpr unsigned kRowMin = 12;
constexpr double kGap = 6;
constexpr double kGroupTitle = 24;
constexpr double kAxis = 44;
constexpr double kLegend = 34;
constexpr double kNameGap = 10;     // gap next to a lane name
constexpr double kCharWidth = 6.8;  // average for 12 px text

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
    Style{Category::kStep, "#f1ece6", "#8a7560", "training step"},
};

const Style& style_of(Category category) {
  return *std::find_if(kStyles.begin(), kStyles.end(),
                       [&](const Style& s) { return s.category == category; });
}

double milliseconds(std::chrono::nanoseconds t) { return static_cast<double>(t.count()) / 1e6; }

double text_width(std::string_view text) { return static_cast<double>(text.size()) * kCharWidth; }

// Returns a step that gives about ten ticks.
double tick_step_of(double total_ms) { return tick_step(std::max(total_ms, 1e-6) / 10); }

class Picture {
 public:
  Picture(const std::vector<TimelineGroup>& groups, const TimelineOptions& options)
      : groups_(groups), options_(options), width_(std::max(options.width_px, 400U)) {
    for (const TimelineGroup& group : groups_) choose_rows(group);
    choose_range();
    labels_end_.resize(rows_.size());
  }

  std::string draw() {
    begin();
    pauses();
    grid();
    rows();
    for (std::size_t group = 0; group < groups_.size(); ++group)
      for (const Span& s : groups_[group].spans) cell(group, s);
    marks();
    titles();
    axis();
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  struct Row {
    std::size_t group = 0;
    std::string lane;
    double y = 0;
  };

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void choose_rows(const TimelineGroup& group) {
    const auto index = static_cast<std::size_t>(&group - groups_.data());
    if (!group.title.empty()) {
      titles_.push_back(rows_end_);
      rows_end_ += kGroupTitle;
    } else {
      titles_.push_back(0);
    }
    std::vector<std::string> lanes = group.lanes;
    if (lanes.empty())
      for (const Span& s : group.spans)
        if (s.category != Category::kPause &&
            std::find(lanes.begin(), lanes.end(), s.lane) == lanes.end())
          lanes.push_back(s.lane);
    for (std::string& lane : lanes) {
      left_ = std::max(left_, text_width(lane) + 2 * kNameGap);
      rows_.push_back({.group = index, .lane = std::move(lane), .y = rows_end_});
      rows_end_ += row_height() + kGap;
    }
  }
  void choose_range() {
    bool any = false;
    for (std::size_t group = 0; group < groups_.size(); ++group)
      for (const Span& s : groups_[group].spans) {
        const bool has_row = row_of(group, s) != nullptr;
        if (s.category == Category::kPause && !has_row) bands_.push_back(s);
        if (s.category != Category::kPause && !has_row) continue;
        first_ = any ? std::min(first_, s.begin) : s.begin;
        last_ = any ? std::max(last_, s.end) : s.end;
        any = true;
      }
    if (options_.range) {
      first_ = options_.range->begin;
      last_ = options_.range->end;
      bands_ = spans_between(bands_, first_, last_);
    }
    total_ms_ = std::max(milliseconds(last_ - first_), 1e-3);
  }
  [[nodiscard]] const Row* row_of(std::size_t group, const Span& s) const {
    const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) {
      return r.group == group && r.lane == s.lane;
    });
    return row == rows_.end() ? nullptr : &*row;
  }
  [[nodiscard]] double right() const { return static_cast<double>(width_) - kRight; }
  [[nodiscard]] double x_of(double ms) const { return left_ + ms / total_ms_ * (right() - left_); }
  [[nodiscard]] double x_of(TimePoint t) const {
    return x_of(milliseconds(std::clamp(t, first_, last_) - first_));
  }
  [[nodiscard]] double row_height() const { return std::max(options_.row_px, kRowMin); }
  [[nodiscard]] double rows_begin() const { return kTop + kPauseHeight; }
  [[nodiscard]] double height() const { return rows_end_ + kAxis + kLegend; }

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
    for (const PauseBand& band : pause_bands(bands_)) {
      const double x = x_of(band.begin);
      const double w = std::max(x_of(band.end) - x, 1.0);
      used_[static_cast<std::size_t>(Category::kPause)] = true;
      put(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}"/>)", x, kTop, w,
          rows_end_ - kTop, style.fill);
      for (const double edge : {x, x + w})
        put(R"(<line x1="{0:.2f}" y1="{1:.1f}" x2="{0:.2f}" y2="{2:.1f}" stroke="{3}" stroke-dasharray="4 3"/>)",
            edge, kTop, rows_end_, style.stroke);
      const std::string text =
          fmt::format("engines paused: {:.1f} ms", milliseconds(band.end - band.begin));
      const bool fits = text_width(text) < w;
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
          x_of(i * step), rows_begin(), rows_end_);
  }

  void rows() {
    for (const Row& row : rows_) {
      put(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end">{}</text>)", left_ - kNameGap,
          row.y + row_height() / 2 + 4, svg_escaped(row.lane));
      put(R"(<line x1="{:.0f}" y1="{:.1f}" x2="{:.0f}" y2="{:.1f}" stroke="#e1e5ea"/>)", left_,
          row.y + row_height() + kGap / 2, right(), row.y + row_height() + kGap / 2);
    }
  }

  void cell(std::size_t group, const Span& s) {
    const Row* row = row_of(group, s);
    if (row == nullptr || s.end < first_ || s.begin > last_) return;
    used_[static_cast<std::size_t>(s.category)] = true;
    const Style& style = style_of(s.category);
    const double x = x_of(s.begin);
    const double w = std::max(x_of(s.end) - x, 0.8);
    put(R"(<g><title>{}: {:.3f} to {:.3f} ms ({:.3f} ms)</title><rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.0f}" rx="2" fill="{}" stroke="{}" stroke-width="0.8"/>)",
        svg_escaped(s.name), milliseconds(s.begin - first_), milliseconds(s.end - first_),
        milliseconds(s.end - s.begin), x, row->y, w, row_height(), style.fill, style.stroke);
    const double baseline = row->y + row_height() / 2 + 4;
    if (!s.label.empty() && text_width(s.label) + 3 <= w)
      put(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{}</text>)", x + w / 2, baseline,
          svg_escaped(s.label));
    else if (!s.label.empty() && take_room(*row, group, s, x + w, text_width(s.label) + 6))
      put(R"(<text x="{:.2f}" y="{:.1f}">{}</text>)", x + w + 3, baseline, svg_escaped(s.label));
    put("</g>");
  }

  // Reserves `width` pixels from `x` on in the row of `s` for a label. Returns false if a span or
  // another label needs this room.
  bool take_room(const Row& row, std::size_t group, const Span& s, double x, double width) {
    const std::vector<Span>& spans = groups_[group].spans;
    double& labels_end = labels_end_[static_cast<std::size_t>(&row - rows_.data())];
    if (x < labels_end) return false;
    const bool free =
        x + width <= right() && std::none_of(spans.begin(), spans.end(), [&](const Span& other) {
          return &other != &s && other.lane == s.lane && x_of(other.end) > x &&
                 x_of(other.begin) < x + width;
        });
    if (free) labels_end = x + width;
    return free;
  }

  void marks() {
    for (const TimePoint mark : options_.marks)
      if (mark >= first_ && mark <= last_)
        put(R"(<line x1="{0:.2f}" y1="{1:.1f}" x2="{0:.2f}" y2="{2:.1f}" stroke="#55606e" stroke-dasharray="2 3"/>)",
            x_of(mark), rows_begin(), rows_end_);
  }

  // Drawn last, so that they are above the lines that they cross.
  void titles() {
    for (std::size_t group = 0; group < groups_.size(); ++group)
      if (!groups_[group].title.empty())
        put(R"(<text x="16" y="{:.1f}" font-weight="bold" stroke="#ffffff" stroke-width="4" paint-order="stroke">{}</text>)",
            titles_[group] + 16, svg_escaped(groups_[group].title));
  }

  void axis() {
    const double y = rows_end_ + 4;
    put(R"(<line x1="{:.0f}" y1="{:.1f}" x2="{:.0f}" y2="{:.1f}" stroke="#1d2530"/>)", left_, y,
        right(), y);
    const double step = tick_step_of(total_ms_);
    const int digits = tick_digits(step);
    for (int i = 0; i * step <= total_ms_ * (1 + 1e-9); ++i) {
      const double x = x_of(i * step);
      put(R"(<line x1="{0:.2f}" y1="{1:.1f}" x2="{0:.2f}" y2="{2:.1f}" stroke="#1d2530"/>)", x, y,
          y + 5);
      put(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{:.{}f}</text>)", x, y + 19, i * step,
          digits);
    }
    put(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end" fill="#55606e">ms</text>)",
        left_ - kNameGap, y + 19);
  }

  void legend() {
    const double y = rows_end_ + kAxis + 4;
    double x = left_;
    for (const Style& style : kStyles) {
      if (!used_[static_cast<std::size_t>(style.category)]) continue;
      put(R"(<rect x="{:.1f}" y="{:.1f}" width="16" height="12" rx="2" fill="{}" stroke="{}"/>)", x,
          y, style.fill, style.stroke);
      put(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", x + 22, y + 10.5, style.legend);
      x += 22 + text_width(style.legend) + 26;
    }
  }

  const std::vector<TimelineGroup>& groups_;
  const TimelineOptions& options_;
  unsigned width_;
  double left_ = kLeftMin;
  std::vector<Row> rows_;
  std::vector<double> labels_end_;  // per row: end of the last label beside a cell
  std::vector<double> titles_;      // per group: top of its title
  double rows_end_ = kTop + kPauseHeight;
  std::vector<Span> bands_;
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

std::string grouped_timeline_svg(const std::vector<TimelineGroup>& groups,
                                 const TimelineOptions& options) {
  return Picture(groups, options).draw();
}

std::string timeline_svg(const std::vector<Span>& spans, const TimelineOptions& options) {
  return grouped_timeline_svg({{.title = {}, .lanes = options.lanes, .spans = spans}}, options);
}

Result<> write_timeline_svg(const std::string& path, const std::vector<Span>& spans,
                            const TimelineOptions& options) {
  return write_text_file(path, timeline_svg(spans, options));
}

}  // namespace wsync::trace
