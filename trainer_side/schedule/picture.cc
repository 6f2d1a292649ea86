#include "trainer_side/schedule/picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "shared/base/format.h"
#include "shared/observe/trace/svg.h"

namespace wsync::schedule {
namespace {

constexpr double kLeftMin = 110;
constexpr double kRight = 24;
constexpr double kTop = 68;
constexpr double kRow = 24;
constexpr double kRowGap = 4;
constexpr double kAxis = 40;
constexpr double kPanelTop = 34;  // height of a panel title
constexpr double kLaneRow = 34;
constexpr double kPanelGap = 26;
constexpr double kLegend = 52;
constexpr double kTurnWidth = 22;  // width of the shortest turn, which leaves room for its number
constexpr double kWidthMin = 1240;
constexpr double kTickWidth = 60;   // minimum distance between ticks
constexpr double kCharWidth = 6.6;  // average width in 11 px text
constexpr double kNameWidth = 7.2;  // average width in 12 px text

struct Colour {
  const char* fill;
  const char* stroke;
};
constexpr std::array kForwardShades{Colour{"#5b8fd6", "#2f5d9e"}, Colour{"#a9c8f0", "#2f5d9e"},
                                    Colour{"#7fabe3", "#2f5d9e"}, Colour{"#cfe0f7", "#2f5d9e"}};
constexpr std::array kBackwardShades{Colour{"#e0706a", "#a03630"}, Colour{"#f3b6b2", "#a03630"},
                                     Colour{"#ea938e", "#a03630"}, Colour{"#f9d7d5", "#a03630"}};
constexpr Colour kWeight{"#f7dcc8", "#b0632c"};
constexpr Colour kPipeline{"#7cc48a", "#2f7d40"};
constexpr Colour kCopyColour{"#f6dc74", "#a88912"};
constexpr Colour kForwardExpert{"#dbe8f8", "#2f5d9e"};
constexpr Colour kBackwardExpert{"#fae2e0", "#a03630"};

struct OperationStyle {
  const char* label;
  Colour colour;
  trace::Category category;
};
OperationStyle style_of(OperationKind kind) {
  using trace::Category;
  switch (kind) {
    case OperationKind::kAttention:
      return {"Attn", kForwardShades[0], Category::kForward};
    case OperationKind::kMlp:
      return {"MLP", kForwardShades[0], Category::kForward};
    case OperationKind::kHead:
      return {"Head", kForwardShades[0], Category::kForward};
    case OperationKind::kMlpGradient:
      return {"MLP", kBackwardShades[0], Category::kBackward};
    case OperationKind::kAttentionGradient:
      return {"Attn", kBackwardShades[0], Category::kBackward};
    case OperationKind::kWeightGradient:
      return {"WGrad", kWeight, Category::kBackward};
    case OperationKind::kDispatch:
      return {"EP-D", kForwardExpert, Category::kExpertParallel};
    case OperationKind::kCombine:
      return {"EP-C", kForwardExpert, Category::kExpertParallel};
    case OperationKind::kCombineGradient:
      return {"EP-C", kBackwardExpert, Category::kExpertParallel};
    case OperationKind::kDispatchGradient:
      return {"EP-D", kBackwardExpert, Category::kExpertParallel};
    case OperationKind::kSendActivation:
    case OperationKind::kSendGradient:
    case OperationKind::kReceiveActivation:
    case OperationKind::kReceiveGradient:
      return {"PP", kPipeline, Category::kPipelineParallel};
    case OperationKind::kOffload:
      return {"Offload", kCopyColour, Category::kOffload};
    case OperationKind::kOnload:
      return {"Onload", kCopyColour, Category::kOffload};
  }
  return {"?", kPipeline, Category::kOther};
}

// One turn of a rank, assembled from its operations.
struct Turn {
  std::optional<Cell> forward, backward, weight;
  Timing work{std::numeric_limits<double>::max(), 0};   // without sends and copies
  Timing whole{std::numeric_limits<double>::max(), 0};  // with sends
};

void widen(Timing& range, const Timing& time) {
  range.begin = std::min(range.begin, time.begin);
  range.end = std::max(range.end, time.end);
}

std::vector<Turn> turns_of(const TimedProgram& timed, std::size_t rank) {
  const RankProgram& program = timed.program.ranks[rank];
  std::vector<Turn> turns(program.turns);
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.part == 0 || lane_of(operation.kind) == Lane::kCopy) continue;
    Turn& turn = turns[operation.turn];
    widen(turn.whole, timed.times[rank][i]);
    if (is_send(operation.kind)) continue;
    widen(turn.work, timed.times[rank][i]);
    if (operation.cell.computation == Computation::kForward)
      turn.forward = operation.cell;
    else if (operation.kind == OperationKind::kWeightGradient)
      turn.weight = operation.cell;
    else
      turn.backward = operation.cell;
  }
  return turns;
}

std::string turn_text(const Turn& turn) {
  std::string text;
  if (turn.forward && turn.backward)
    text = to_string(Action{*turn.forward, turn.backward});
  else if (turn.forward || turn.backward)
    text = to_string(turn.forward ? *turn.forward : *turn.backward);
  if (turn.weight && turn.weight->computation == Computation::kWeightGradient)
    text += (text.empty() ? "" : ",") + to_string(*turn.weight);
  return text;
}

class Picture {
 public:
  Picture(const TimedProgram& grid, const TimedProgram& lanes, const PictureOptions& options)
      : grid_(grid), lanes_(lanes), options_(options) {
    double shortest = std::numeric_limits<double>::max();
    for (std::size_t rank = 0; rank < grid.program.ranks.size(); ++rank) {
      turns_.push_back(turns_of(grid, rank));
      left_ = std::max(left_, kNameWidth * static_cast<double>(row_name(rank).size()) + 20);
      for (const Turn& turn : turns_.back()) {
        makespan_ = std::max(makespan_, turn.whole.end);
        if (turn.work.end > turn.work.begin)
          shortest = std::min(shortest, turn.work.end - turn.work.begin);
      }
    }
    makespan_ = std::max(makespan_, 1e-9);
    scale_ = std::max((kWidthMin - left_ - kRight) / makespan_, kTurnWidth / shortest);
    choose_panels();
  }

  std::string draw() {
    begin();
    rows();
    axis();
    panels();
    legend();
    return std::move(out_) + "</svg>\n";
  }

 private:
  struct Panel {
    std::string title;
    std::size_t rank = 0;
    Turn turn;
    double begin = 0;  // including copies
    double end = 0;
  };

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }
  void box(double x, double y, double width, double height, const Colour& colour,
           std::string_view label, std::string_view hover) {
    put(R"(<g><title>{}</title><rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}" stroke="{}" stroke-width="0.8"/>)",
        trace::svg_escaped(hover), x, y, std::max(width, 0.5), height, colour.fill, colour.stroke);
    if (static_cast<double>(label.size()) * kCharWidth <= width)
      put(R"(<text x="{:.2f}" y="{:.2f}" text-anchor="middle">{}</text>)", x + width / 2,
          y + height / 2 + 4, label);
    put("</g>");
  }

  [[nodiscard]] std::string row_name(std::size_t rank) const {
    return rank < options_.rows.size() ? options_.rows[rank] : fmt::format("PP{}", rank);
  }
  [[nodiscard]] double x_of(double time) const { return left_ + time * scale_; }
  [[nodiscard]] double width() const { return x_of(makespan_) + kRight; }
  [[nodiscard]] double row_height() const { return has_pairs_ ? kRow * 1.4 : kRow; }
  [[nodiscard]] double y_of(std::size_t rank) const {
    return kTop + static_cast<double>(rank) * (row_height() + kRowGap);
  }
  [[nodiscard]] double grid_end() const { return y_of(turns_.size()); }
  [[nodiscard]] double panels_top() const { return grid_end() + kAxis; }
  [[nodiscard]] double panels_end() const {
    return panels_.empty() ? panels_top() : panels_top() + kPanelTop + kLaneCount * kLaneRow + 20;
  }

  // Chooses one example of each kind of turn. Prefers a turn with a copy and a rank in the middle.
  void choose_panels() {
    const std::size_t ranks = lanes_.program.ranks.size();
    const auto choose = [&](std::string_view name, bool forward, bool backward, bool last) {
      for (std::size_t i = 0; i < ranks; ++i) {
        const std::size_t rank = (ranks / 2 + i) % ranks;
        std::vector<Turn> turns = turns_of(lanes_, rank);
        std::erase_if(turns, [&](const Turn& turn) {
          return turn.forward.has_value() != forward || turn.backward.has_value() != backward;
        });
        if (turns.empty()) continue;
        const Turn& turn = last ? turns.back() : turns[turns.size() / 2];
        panels_.push_back({.title = fmt::format("{}: {} on PP{}", name, turn_text(turn), rank),
                           .rank = rank,
                           .turn = turn,
                           .begin = turn.whole.begin,
                           .end = turn.whole.end});
        return;
      }
    };
    for (const std::vector<Turn>& turns : turns_)
      for (const Turn& turn : turns) has_pairs_ |= turn.forward && turn.backward;
    choose("A forward alone", true, false, true);
    choose("A pair (1F1B)", true, true, false);
    choose("A backward alone (cool-down)", false, true, false);
  }

  void begin() {
    const double height = panels_end() + kLegend;
    put(R"(<?xml version="1.0" encoding="UTF-8"?>)");
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="11" fill="#1d2530">)",
        width(), height);
    put(R"(<title>{}</title>)", trace::svg_escaped(options_.title));
    put(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    put(R"(<text x="16" y="28" font-size="17" font-weight="bold">{}</text>)",
        trace::svg_escaped(options_.title));
    put(R"(<text x="16" y="48" font-size="12" fill="#55606e">{}</text>)",
        trace::svg_escaped(options_.subtitle));
  }

  void rows() {
    for (std::size_t rank = 0; rank < turns_.size(); ++rank) {
      const double y = y_of(rank);
      put(R"(<text x="{:.0f}" y="{:.1f}" font-size="12" text-anchor="end">{}</text>)", left_ - 10,
          y + row_height() / 2 + 4, trace::svg_escaped(row_name(rank)));
      put(R"(<line x1="{:.0f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#e1e5ea"/>)", left_,
          y + row_height() + kRowGap / 2, x_of(makespan_), y + row_height() + kRowGap / 2);
      for (const Turn& turn : turns_[rank]) turn_box(turn, y);
    }
  }

  void turn_box(const Turn& turn, double y) {
    const double x = x_of(turn.work.begin);
    const double w = x_of(turn.work.end) - x;
    const std::string hover = fmt::format("{}: {:g} to {:g} {}", turn_text(turn), turn.whole.begin,
                                          turn.whole.end, options_.unit);
    const auto shade = [&](const auto& shades, const Cell& cell) {
      return shades[grid_.program.shape.chunk_of(cell.stage) % shades.size()];
    };
    const bool is_pair = turn.forward && turn.backward;
    const double height = is_pair ? row_height() / 2 : row_height();
    if (turn.forward)
      box(x, y, w, height, shade(kForwardShades, *turn.forward),
          std::to_string(turn.forward->microbatch), hover);
    if (turn.backward)
      box(x, is_pair ? y + height : y, w, height, shade(kBackwardShades, *turn.backward),
          std::to_string(turn.backward->microbatch), hover);
    if (!turn.forward && !turn.backward && turn.weight)
      box(x, y, w, height, kWeight, std::to_string(turn.weight->microbatch), hover);
  }

  void axis() {
    const double y = grid_end() + 4;
    const double step = trace::tick_step(kTickWidth / scale_);
    const int digits = trace::tick_digits(step);
    put(R"(<line x1="{:.0f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#1d2530"/>)", left_, y,
        x_of(makespan_), y);
    for (int i = 0; i * step <= makespan_ * (1 + 1e-9); ++i) {
      put(R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}" stroke="#1d2530"/>)",
          x_of(i * step), y, y + 5);
      put(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{:.{}f}</text>)", x_of(i * step),
          y + 18, i * step, digits);
    }
    put(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end" fill="#55606e">{}</text>)", left_ - 10,
        y + 18, trace::svg_escaped(options_.unit));
  }

  void panels() {
    double total = 0;
    for (const Panel& panel : panels_) total += panel.end - panel.begin;
    const double room = kWidthMin - left_ - kRight -
                        kPanelGap * std::max(0.0, static_cast<double>(panels_.size()) - 1);
    double x = left_;
    for (std::size_t lane = 0; lane < kLaneCount && !panels_.empty(); ++lane)
      put(R"(<text x="{:.0f}" y="{:.1f}" font-size="12" text-anchor="end">{}</text>)", left_ - 10,
          lane_y(lane) + kLaneRow / 2, lane_name(kLanes[lane]));
    for (const Panel& panel : panels_) {
      const double scale = room / total;
      draw_panel(panel, x, scale);
      x += (panel.end - panel.begin) * scale + kPanelGap;
    }
  }
  [[nodiscard]] double lane_y(std::size_t lane) const {
    return panels_top() + kPanelTop + static_cast<double>(lane) * kLaneRow;
  }

  void draw_panel(const Panel& panel, double left, double scale) {
    put(R"(<text x="{:.1f}" y="{:.1f}" font-size="12" font-weight="bold">{}</text>)", left,
        panels_top() + kPanelTop - 12, trace::svg_escaped(panel.title));
    const RankProgram& program = lanes_.program.ranks[panel.rank];
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& operation = program.operations[i];
      const Timing time = lanes_.times[panel.rank][i];
      if (is_receive(operation.kind) || time.end <= panel.begin || time.begin >= panel.end ||
          time.end <= time.begin)
        continue;
      const OperationStyle style = style_of(operation.kind);
      const double x = left + (std::max(time.begin, panel.begin) - panel.begin) * scale;
      const double end = left + (std::min(time.end, panel.end) - panel.begin) * scale;
      box(x, lane_y(static_cast<std::size_t>(lane_of(operation.kind))), end - x, kLaneRow - 8,
          style.colour, style.label,
          fmt::format("{} of {}: {:g} to {:g} {}", operation_name(operation.kind),
                      to_string(operation.cell), time.begin, time.end, options_.unit));
    }
  }

  void legend() {
    const std::array<std::pair<const Colour*, const char*>, 7> entries{{
        {&kForwardShades[0], "forward"},
        {&kBackwardShades[0], "backward"},
        {&kWeight, "weight gradient"},
        {&kForwardExpert, "expert parallel, forward"},
        {&kBackwardExpert, "expert parallel, backward"},
        {&kPipeline, "pipeline parallel"},
        {&kCopyColour, "offload, onload"},
    }};
    double x = left_;
    const double y = panels_end() + 8;
    for (const auto& [colour, text] : entries) {
      put(R"(<rect x="{:.1f}" y="{:.1f}" width="14" height="11" fill="{}" stroke="{}"/>)", x, y,
          colour->fill, colour->stroke);
      x += 19;
      put(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", x, y + 10, text);
      x += static_cast<double>(std::string_view(text).size()) * 6.3 + 18;
    }
    put(R"(<text x="{:.1f}" y="{:.1f}" fill="#55606e">A number is a micro-batch, counted from 0; the shade tells the chunk.</text>)",
        left_, y + 28);
  }

  const TimedProgram& grid_;
  const TimedProgram& lanes_;
  const PictureOptions& options_;
  std::vector<std::vector<Turn>> turns_;
  std::vector<Panel> panels_;
  bool has_pairs_ = false;
  double left_ = kLeftMin;  // left end of the time axis
  double makespan_ = 0;
  double scale_ = 1;
  std::string out_;
};

}  // namespace

std::string schedule_svg(const TimedProgram& grid, const TimedProgram& lanes,
                         const PictureOptions& options) {
  return Picture(grid, lanes, options).draw();
}

std::vector<std::vector<trace::Span>> schedule_spans(const TimedProgram& timed, double unit_ns) {
  const auto at = [&](double time) {
    return TimePoint{static_cast<std::int64_t>(std::llround(time * unit_ns))};
  };
  std::vector<std::vector<trace::Span>> ranks;
  for (std::size_t rank = 0; rank < timed.program.ranks.size(); ++rank) {
    const RankProgram& program = timed.program.ranks[rank];
    std::vector<trace::Span>& spans = ranks.emplace_back();
    for (std::size_t lane = 0; lane < kLaneCount; ++lane)
      for (const std::uint32_t index : program.lanes[lane]) {
        const Operation& operation = program.operations[index];
        const Timing& time = timed.times[rank][index];
        if (is_receive(operation.kind)) continue;
        const OperationStyle style = style_of(operation.kind);
        spans.push_back({.name = fmt::format("{} {}", operation_name(operation.kind),
                                             to_string(operation.cell)),
                         .lane = std::string(lane_name(kLanes[lane])),
                         .category = style.category,
                         .begin = at(time.begin),
                         .end = at(time.end),
                         .label = style.label,
                         .args = {{"stage", std::int64_t{operation.cell.stage}},
                                  {"microbatch", std::int64_t{operation.cell.microbatch}},
                                  {"part", std::int64_t{operation.part}}}});
      }
  }
  return ranks;
}

}  // namespace wsync::schedule
