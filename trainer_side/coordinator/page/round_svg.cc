#include <algorithm>
#include <cmath>
#include <iterator>

#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/svg.h"
#include "trainer_side/coordinator/page/status_page.h"

namespace wsync::page {
namespace {

using trace::svg_escaped;

constexpr double kWidth = 860;
constexpr double kLeft = 150;  // names
constexpr double kRight = 32;  // half of the last figure of the axis
constexpr double kRow = 26;
constexpr double kBar = 20;
constexpr double kAxis = 28;
constexpr double kCharWidth = 7.2;
constexpr std::size_t kNameShown = 19;
constexpr double kTicks = 6;

double ns_of(TimePoint from, TimePoint to) { return static_cast<double>((to - from).count()); }

// Cut at a character's beginning.
std::string shortened(const std::string& name) {
  if (name.size() <= kNameShown) return name;
  std::size_t end = kNameShown - 1;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0U) == 0x80U) --end;
  return name.substr(0, end) + "\u2026";
}

class RoundPicture {
 public:
  RoundPicture(const RoundRecord& round, const std::string& title) : round_(round) {
    total_ = std::max(1e3, ns_of(round.began, round.ended));
    height_ = kRow * static_cast<double>(round.lanes.size() + 1) + kAxis;
    put(R"(<svg class="round" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" height="{:.0f}" role="img")"
        R"( aria-label="{}">)",
        kWidth, height_, kWidth, height_, svg_escaped(title));
  }

  std::string draw() {
    axis();
    row("coordinator", round_.phases);
    for (const RoundLane& lane : round_.lanes) row(lane.sidecar, lane.stages);
    out_ += "</svg>";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  double x_of(double ns) const { return kLeft + ns / total_ * (kWidth - kLeft - kRight); }

  void axis() {
    const double bottom = height_ - kAxis;
    const double step = trace::tick_step(total_ / kTicks);
    for (double at = 0; at <= total_; at += step)
      put(R"(<path class="grid" d="M{0:.1f} 0V{1:.1f}"/><text class="tick" x="{0:.1f}" y="{2:.1f}">{3}</text>)",
          x_of(at), bottom + 4, height_ - 8,
          at == 0
              ? "0"
              : trace::format_duration(std::chrono::nanoseconds(static_cast<std::int64_t>(at))));
  }

  void row(const std::string& name, const std::vector<RoundStage>& stages) {
    put(R"(<text class="lane" x="{:.0f}" y="{:.1f}">{}<title>{}</title></text>)", kLeft - 8,
        y_ + kBar / 2 + 5, svg_escaped(shortened(name)), svg_escaped(name));
    for (const RoundStage& stage : stages) {
      const double begin = x_of(std::max(0.0, ns_of(round_.began, stage.begin)));
      const double end = x_of(std::min(total_, ns_of(round_.began, stage.end)));
      const double width = std::max(2.0, end - begin);
      const std::string took = trace::format_duration(stage.end - stage.begin);
      put(R"(<rect class="{0}" x="{1:.1f}" y="{2:.1f}" width="{3:.1f}" height="{4:.0f}" rx="2">)"
          R"(<title>{0}: {5}</title></rect>)",
          stage.name, begin, y_ + 3, width, kBar, took);
      const bool both =
          static_cast<double>(stage.name.size() + took.size() + 1) * kCharWidth < width;
      if (static_cast<double>(stage.name.size()) * kCharWidth < width)
        put(R"(<text class="bar" x="{:.1f}" y="{:.1f}">{}{}</text>)", begin + width / 2,
            y_ + kBar / 2 + 8, stage.name, both ? " " + took : "");
    }
    y_ += kRow;
  }

  const RoundRecord& round_;
  double total_ = 1;
  double height_ = 0;
  double y_ = 0;
  std::string out_;
};

}  // namespace

std::string round_svg(const RoundRecord& round, const std::string& title) {
  return RoundPicture(round, title).draw();
}

}  // namespace wsync::page
