// Spans as a Chrome trace file, which https://ui.perfetto.dev and chrome://tracing load. The format
// is Google's Trace Event Format in its JSON object form: complete events ("X") on the threads of
// processes, their names as metadata events ("M"), arrows as flow events ("s", "t", "f").
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/observe/trace/clock_offset.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::trace {

// One process of the trace; its lanes become threads, in the order of their first span.
struct ProcessTrace {
  std::string name;  // "sidecar host0"
  std::uint32_t pid = 0;
  std::vector<Span> spans;
  std::string host = {};  // for people; empty: not known
  // What its spans have been moved by, to stand on the clock of the file; none: nothing is known.
  std::optional<ClockReading> clock = std::nullopt;
  std::uint64_t dropped = 0;  // spans that it had and are not here
};

struct FlowStep {
  std::size_t process = 0;  // index in Trace::processes
  std::size_t span = 0;     // index in its spans
};
// Arrows from span to span, in the order of time.
struct Flow {
  std::string name;
  std::vector<FlowStep> steps;  // two at least
};

struct Trace {
  std::vector<ProcessTrace> processes;
  std::vector<Flow> flows = {};
  std::vector<std::string> notes = {};  // for people: what is missing in it, and why
};

// The file's text. Times are microseconds of the host's monotonic clock, so traces of several
// processes of one host stand side by side. Processes of one pid are given others. Each flow has an
// id of its own in the file; its events are bound to the begin of their spans. `otherData` has, for
// each process, its host, its clock and what was dropped; and the notes.
[[nodiscard]] std::string chrome_trace_json(const Trace& trace);
[[nodiscard]] Result<> write_chrome_trace(const std::string& path, const Trace& trace);
[[nodiscard]] std::string chrome_trace_json(const std::vector<ProcessTrace>& processes);
[[nodiscard]] Result<> write_chrome_trace(const std::string& path,
                                          const std::vector<ProcessTrace>& processes);

}  // namespace wsync::trace
