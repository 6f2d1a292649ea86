#include "shared/command/fleet_trace.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/control/zmq/request.h"
#include "shared/observe/trace/limits.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/span_codec.h"
#include "shared/observe/trace/text_file.h"
#include "shared/observe/trace/update_flows.h"

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kAskDeadline{15'000};
constexpr std::string_view kJson = ".json";

trace::ClockReading clock_of(const control::TraceProcess& process) {
  // Offsets beyond this bound are rejected, so that later sums cannot overflow.
  constexpr auto kMax = std::uint64_t{1} << 60U;
  if (process.offset_ns > static_cast<std::int64_t>(kMax) ||
      process.offset_ns < -static_cast<std::int64_t>(kMax))
    return {};
  return {.kind = process.clock,
          .offset = std::chrono::nanoseconds(process.offset_ns),
          .uncertainty =
              std::chrono::nanoseconds(std::min<std::uint64_t>(process.uncertainty_ns, kMax))};
}

void add_flows(trace::Trace& trace) {
  std::uint64_t left_out = 0;
  trace.flows = trace::update_flows(trace.processes, limits::kTraceFlows, &left_out);
  if (left_out != 0)
    trace.notes.push_back(
        fmt::format("{} more arrows, which exceed the limit of one trace", left_out));
}

}  // namespace

trace::Trace trace_of(const control::TraceAnswer& answer) {
  trace::Trace trace;
  for (const control::TraceProcess& process : answer.processes) {
    if (!process.failure.empty()) {
      trace.notes.push_back(fmt::format("{} {}", process.name, process.failure));
      continue;
    }
    // Without a plausible clock exchange, times are not shifted.
    const trace::ClockReading clock = clock_of(process);
    const auto offset =
        clock.kind == ClockKind::kMeasured ? clock.offset : std::chrono::nanoseconds(0);
    std::vector<trace::Span> spans;
    if (!process.spans.empty()) {
      auto decoded = trace::decode_spans(process.spans);
      if (!decoded) {
        trace.notes.push_back(fmt::format("{}: its trace cannot be read: {}", process.name,
                                          decoded.error().message()));
        continue;
      }
      spans = std::move(*decoded);
    }
    for (trace::Span& span : spans) {
      span.begin = span.begin + -offset;
      span.end = span.end + -offset;
    }
    if (process.dropped != 0)
      trace.notes.push_back(fmt::format("{}: {} older spans, which the process has discarded",
                                        process.name, process.dropped));
    trace.processes.push_back({.name = process.name,
                               .pid = process.pid,
                               .spans = std::move(spans),
                               .host = process.host,
                               .clock = clock,
                               .dropped = process.dropped});
  }
  add_flows(trace);
  return trace;
}

Result<trace::Trace> ask_trace(const std::string& address, std::chrono::nanoseconds age,
                               std::chrono::milliseconds deadline,
                               const std::optional<control::KeyFile>& key) {
  control::TraceQuestion question;
  question.age_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(age.count(), 0));
  question.max_bytes = limits::kTraceAnswerBytes;
  question.asked_ns = static_cast<std::int64_t>(now());
  const auto decoded = WSYNC_TRY(control::request(
      {.address = address, .deadline = deadline, .key = key, .stop_on_signal = true}, {},
      question));
  if (const auto* answer = std::get_if<control::TraceAnswer>(&decoded.message))
    return trace_of(*answer);
  return fail(ErrorCode::kInternal,
              fmt::format("{} answered with {}", address,
                          control::message_name(control::type_of(decoded.message))));
}

std::vector<std::string> traced_versions(const trace::Trace& trace) {
  std::map<std::string, TimePoint> last;
  for (const trace::ProcessTrace& process : trace.processes)
    for (const trace::Span& span : process.spans)
      if (const std::string version(trace::text_arg(span, "version")); !version.empty()) {
        TimePoint& end = last[version];
        end = std::max(end, span.end);
      }
  std::vector<std::string> versions;
  for (const auto& [version, end] : last) versions.push_back(version);
  std::ranges::stable_sort(
      versions, [&](const std::string& a, const std::string& b) { return last[a] > last[b]; });
  return versions;
}

void keep_versions(trace::Trace& trace, const std::vector<std::string>& versions) {
  const auto wanted = [&](const trace::Span& span) {
    const std::string_view version = trace::text_arg(span, "version");
    return !version.empty() && std::ranges::find(versions, version) != versions.end();
  };
  std::optional<std::pair<TimePoint, TimePoint>> range;
  for (const trace::ProcessTrace& process : trace.processes)
    for (const trace::Span& span : process.spans) {
      if (!wanted(span)) continue;
      if (!range) range.emplace(span.begin, span.end);
      range->first = std::min(range->first, span.begin);
      range->second = std::max(range->second, span.end);
    }
  for (trace::ProcessTrace& process : trace.processes)
    std::erase_if(process.spans, [&](const trace::Span& span) {
      if (!trace::text_arg(span, "version").empty()) return !wanted(span);
      return !range || span.end < range->first || span.begin > range->second;
    });
  add_flows(trace);
}

Result<> check_trace_file(const std::string& path) {
  auto checked = trace::check_text_file(path);
  if (!checked) return fail(checked.error().with_context("a trace"));
  return checked;
}

std::string trace_text(const trace::Trace& trace) {
  std::size_t spans = 0;
  for (const trace::ProcessTrace& process : trace.processes) spans += process.spans.size();
  const std::size_t processes = trace.processes.size();
  std::string text = fmt::format("{} process{}, {}, {}", processes, processes == 1 ? "" : "es",
                                 counted(spans, "span"), counted(trace.flows.size(), "flow"));
  for (const std::string& note : trace.notes) text += "\nnot in the trace: " + note;
  return text;
}

Result<CommandTrace> CommandTrace::begin(const std::string& path) {
  if (!path.empty()) WSYNC_TRY(check_trace_file(path));
  return CommandTrace(path, now());
}

Result<std::string> CommandTrace::write(const trace::Trace& trace) const {
  WSYNC_TRY(trace::write_chrome_trace(path_, trace));
  return fmt::format("trace: {} ({})", path_, trace_text(trace));
}

Result<std::string> CommandTrace::write(const control::TraceAnswer& answer) const {
  return write(trace_of(answer));
}

Result<std::string> CommandTrace::write(const std::string& address,
                                        const std::optional<control::KeyFile>& key) const {
  const auto trace = ask_trace(address, age(), kAskDeadline, key);
  if (!trace) return fail(trace.error().with_context("the trace"));
  return write(*trace);
}

Result<std::string> trace_file_setting(const std::string& path) {
  if (!path.ends_with(kJson) || fs::path(path).filename() == kJson)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--trace {}: expected the name of a file that ends with .json", path));
  WSYNC_TRY(check_trace_file(path));
  return path.substr(0, path.size() - kJson.size());
}

}  // namespace wsync::cli
