#include "deploy/demo/training_picture.h"

#include <algorithm>
#include <string_view>

#include "shared/base/format.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::cli {
namespace {

using trace::Category;
using trace::ProcessTrace;
using trace::Span;
using trace::TimelineGroup;

constexpr std::string_view kRankProcess = "trainer rank ";
constexpr std::string_view kSidecarProcess = "sidecar ";
constexpr std::string_view kCoordinatorProcess = "coordinator";
constexpr std::string_view kReplicaLane = "replica ";
constexpr std::size_t kStepsPictured = 2;
constexpr unsigned kPictureWidth = 1440;
constexpr unsigned kRowHeight = 16;

std::vector<Span> spans_of(const ProcessTrace& process, std::string_view lane) {
  std::vector<Span> spans;
  std::ranges::copy_if(process.spans, std::back_inserter(spans),
                       [&](const Span& span) { return span.lane == lane; });
  return spans;
}

// Returns the text after the last space: "1.40" of "staging of 1.40".
std::string last_word(const std::string& text) { return text.substr(text.rfind(' ') + 1); }

std::string milliseconds_text(const Span& span) {
  return fmt::format("{:.1f} ms", static_cast<double>((span.end - span.begin).count()) * 1e-6);
}

// Rows for the whole run: the steps with their updates, and the snapshots of their weights.
TimelineGroup run_group(const ProcessTrace& rank, const ProcessTrace* coordinator) {
  TimelineGroup group{.title = "training", .lanes = {"steps"}, .spans = spans_of(rank, "steps")};
  for (Span& step : group.spans) step.label = step.name;
  for (Span& update : spans_of(rank, "update")) {
    update.lane = "steps";
    group.spans.push_back(std::move(update));
  }
  if (coordinator == nullptr) return group;
  group.lanes.emplace_back("snapshot");
  for (Span& snapshot : spans_of(*coordinator, "snapshot")) {
    snapshot.label = last_word(snapshot.name);
    group.spans.push_back(std::move(snapshot));
  }
  return group;
}

// Rows for the engines: the pause of each, and what it reloads during the pause.
TimelineGroup sidecar_group(const ProcessTrace& sidecar) {
  TimelineGroup group{.title = sidecar.name, .lanes = {"staging"}, .spans = {}};
  std::vector<std::string> engines;
  for (Span span : sidecar.spans) {
    if (span.lane == "staging") {
      span.label = last_word(span.name);
    } else if (span.category == Category::kPause && span.lane.starts_with(kReplicaLane)) {
      span.lane = "engine " + span.lane.substr(kReplicaLane.size());
      span.label = milliseconds_text(span);
      if (std::find(engines.begin(), engines.end(), span.lane) == engines.end())
        engines.push_back(span.lane);
    }
    group.spans.push_back(std::move(span));
  }
  std::sort(engines.begin(), engines.end());
  group.lanes.insert(group.lanes.end(), engines.begin(), engines.end());
  // Spans that are drawn later cover earlier ones, so pauses come first.
  std::stable_partition(group.spans.begin(), group.spans.end(),
                        [](const Span& span) { return span.category == Category::kPause; });
  return group;
}

const ProcessTrace* named(const std::vector<ProcessTrace>& processes, std::string_view beginning) {
  const auto found = std::ranges::find_if(
      processes, [&](const ProcessTrace& process) { return process.name.starts_with(beginning); });
  return found == processes.end() ? nullptr : &*found;
}

}  // namespace

Result<trace::TimeRange> pictured_steps(const ProcessTrace& rank) {
  const std::vector<Span> steps = spans_of(rank, "steps");
  if (steps.size() <= kStepsPictured)
    return fail(ErrorCode::kNotFound,
                fmt::format("the trace of {} shows {}, a picture needs {}", rank.name,
                            counted(steps.size(), "step"), kStepsPictured + 1));
  return trace::TimeRange{.begin = steps[steps.size() - 1 - kStepsPictured].begin,
                          .end = steps.back().begin};
}

std::vector<TimelineGroup> training_groups(const std::vector<ProcessTrace>& processes) {
  std::vector<TimelineGroup> groups;
  if (const ProcessTrace* rank = named(processes, kRankProcess))
    groups.push_back(run_group(*rank, named(processes, kCoordinatorProcess)));
  for (const ProcessTrace& process : processes)
    if (process.name.starts_with(kRankProcess))
      groups.push_back({.title = process.name,
                        .lanes = {"computation", "communication", "copy"},
                        .spans = process.spans});
  for (const ProcessTrace& process : processes)
    if (process.name.starts_with(kSidecarProcess)) groups.push_back(sidecar_group(process));
  return groups;
}

Result<> write_training_picture(const std::string& path, const std::vector<ProcessTrace>& processes,
                                PictureText text) {
  const ProcessTrace* rank = named(processes, kRankProcess);
  if (rank == nullptr)
    return fail(ErrorCode::kNotFound, "no trainer rank is in the trace for the picture");
  const auto range = WSYNC_TRY(pictured_steps(*rank));
  std::vector<TimePoint> marks;
  for (const Span& step : spans_of(*rank, "steps")) marks.push_back(step.begin);
  return trace::write_text_file(
      path,
      trace::grouped_timeline_svg(training_groups(processes), {.title = std::move(text.title),
                                                               .subtitle = std::move(text.subtitle),
                                                               .lanes = {},
                                                               .width_px = kPictureWidth,
                                                               .row_px = kRowHeight,
                                                               .range = range,
                                                               .marks = std::move(marks)}));
}

}  // namespace wsync::cli
