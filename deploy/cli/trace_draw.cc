#include "deploy/cli/trace_draw.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "shared/base/format.h"
#include "shared/command/fleet_trace.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

using trace::ProcessTrace;
using trace::Span;
using trace::TimeRange;
using trace::Trace;

std::optional<TimeRange> extent_of(const Trace& trace) {
  std::optional<TimeRange> extent;
  for (const ProcessTrace& process : trace.processes)
    for (const Span& span : process.spans) {
      if (!extent) extent = TimeRange{.begin = span.begin, .end = span.end};
      extent->begin = std::min(extent->begin, span.begin);
      extent->end = std::max(extent->end, span.end);
    }
  return extent;
}

// "H2D" and 12 for "H2D 12", "engine" and a name for "engine a": what comes last, apart. A number
// goes by its value.
struct LaneName {
  std::string family;
  std::uint64_t number = 0;
  std::string last;
};
LaneName split_name(const std::string& lane) {
  const std::size_t space = lane.rfind(' ');
  if (space == std::string::npos) return {.family = lane, .last = {}};
  LaneName name{.family = lane.substr(0, space), .last = lane.substr(space + 1)};
  constexpr std::size_t kDigitsMost = 18;
  if (!name.last.empty() && name.last.size() <= kDigitsMost &&
      name.last.find_first_not_of("0123456789") == std::string::npos)
    name.number = std::stoull(name.last);
  return name;
}

Error nothing_of(const Trace& trace, const std::string& version) {
  const std::vector<std::string> versions = traced_versions(trace);
  if (versions.empty())
    return Error(ErrorCode::kNotFound,
                 fmt::format("--version {}: the trace names no versions", version));
  return Error(ErrorCode::kNotFound,
               fmt::format("--version {}: the trace has none of it, only of {}", version,
                           fmt::join(versions, ", ")));
}

std::string subtitle_of(const Trace& trace, const TimeRange& range, std::size_t spans,
                        std::optional<std::chrono::nanoseconds> from) {
  const std::vector<std::string> versions = traced_versions(trace);
  std::string text = fmt::format("{} in {}", counted(spans, "span"),
                                 trace::format_duration(range.end - range.begin));
  if (from) text += fmt::format(", {} after the first", trace::format_duration(*from));
  if (!versions.empty() && versions.size() <= 4)
    text +=
        fmt::format("; version{} {}", versions.size() == 1 ? "" : "s", fmt::join(versions, ", "));
  text += "; numbers are buckets, of broadcasts the source device";
  std::chrono::nanoseconds uncertainty{0};
  for (const ProcessTrace& process : trace.processes)
    if (process.clock) uncertainty = std::max(uncertainty, process.clock->uncertainty);
  if (uncertainty.count() > 0)
    text += fmt::format("; clocks within {}", trace::format_duration(uncertainty));
  return text;
}

std::string title_of(const ProcessTrace& process) {
  std::string title = process.name.empty() ? fmt::format("process {}", process.pid) : process.name;
  if (!process.host.empty()) title += " on " + process.host;
  return title;
}

}  // namespace

std::vector<std::string> drawn_lanes(const ProcessTrace& process) {
  std::vector<const Span*> spans;
  for (const Span& span : process.spans)
    if (span.category != trace::Category::kPause) spans.push_back(&span);
  std::ranges::stable_sort(spans, {}, [](const Span* span) { return span->begin; });
  std::map<std::string, std::size_t> families;  // of a name without its number: its place
  std::map<std::string, std::tuple<std::size_t, std::uint64_t, std::string>> places;
  for (const Span* span : spans) {
    const LaneName name = split_name(span->lane);
    const std::size_t place = families.try_emplace(name.family, families.size()).first->second;
    places.try_emplace(span->lane, place, name.number, name.last);
  }
  std::vector<std::string> lanes;
  for (const auto& [lane, place] : places) lanes.push_back(lane);
  std::ranges::sort(lanes, {}, [&](const std::string& lane) { return places.at(lane); });
  return lanes;
}

Result<std::string> draw_trace(Trace trace, const DrawOptions& options) {
  if (!options.version.empty()) {
    const std::vector<std::string> versions = traced_versions(trace);
    if (std::ranges::find(versions, options.version) == versions.end())
      return fail(nothing_of(trace, options.version));
    keep_versions(trace, {options.version});
  }
  const std::optional<TimeRange> extent = extent_of(trace);
  if (!extent)
    return fail(ErrorCode::kNotFound, "the trace has no spans: there is nothing to draw");
  TimeRange range = *extent;
  if (options.from) range.begin = extent->begin + *options.from;
  if (options.to) range.end = std::min(range.end, extent->begin + *options.to);
  if (range.end < range.begin || (range.end == range.begin && (options.from || options.to)))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--from, --to: nothing lies between; the trace lasts {}",
                            trace::format_duration(extent->end - extent->begin)));
  std::vector<trace::TimelineGroup> groups;
  std::size_t drawn = 0;
  std::size_t lanes = 0;
  for (ProcessTrace& process : trace.processes) {
    process.spans = trace::spans_between(process.spans, range.begin, range.end);
    trace::separate_overlaps(process.spans);
    if (process.spans.empty()) continue;
    for (Span& span : process.spans)
      if (span.label.empty()) {
        const auto bucket = trace::number_arg(span, "bucket");
        span.label = bucket ? std::to_string(*bucket) : span.name;
      }
    groups.push_back(
        {.title = title_of(process), .lanes = drawn_lanes(process), .spans = process.spans});
    drawn += process.spans.size();
    lanes += groups.back().lanes.size();
  }
  if (drawn > kDrawnSpans || lanes > kDrawnLanes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{} spans in {} lanes: at most {} in {} fit into a picture; choose some "
                    "by --version, --from and --to",
                    drawn, lanes, kDrawnSpans, kDrawnLanes));
  return trace::grouped_timeline_svg(groups,
                                     {.title = options.title,
                                      .subtitle = subtitle_of(trace, range, drawn, options.from),
                                      .lanes = {},
                                      .width_px = options.width_px,
                                      .row_px = 18,
                                      .range = range});
}

}  // namespace wsync::cli
