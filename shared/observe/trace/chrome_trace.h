// Writes spans as a Chrome trace file, which https://ui.perfetto.dev and chrome://tracing can load.
// The format is Google's Trace Event Format in its JSON object form: complete events ("X") on the
// threads of processes, metadata events ("M") for names, and flow events ("s", "t", "f") for
// arrows.
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

// One process of the trace. Its lanes become threads, in the order of their first span.
struct ProcessTrace {
  std::string name;  // "sidecar host0"
  std::uint32_t pid = 0;
  std::vector<Span> spans;
  std::string host = {};  // for people; empty: unknown
  // Clock offset that was applied to the spans to bring them to the clock of the file; std::nullopt
  // if nothing is known.
  std::optional<ClockReading> clock = std::nullopt;
  std::uint64_t dropped = 0;  // spans that were dropped and are missing here
};

struct FlowStep {
  std::size_t process = 0;  // index in Trace::processes
  std::size_t span = 0;     // index in its spans
};
// An arrow through several spans, in time order.
struct Flow {
  std::string name;
  std::vector<FlowStep> steps;  // at least two
};

struct Trace {
  std::vector<ProcessTrace> processes;
  std::vector<Flow> flows = {};
  std::vector<std::string> notes = {};  // for people: missing data and why
};

// Returns the text of the file. Times are microseconds of the host's monotonic clock, so traces of
// several processes of one host can be compared. Processes that share a pid get different ones.
// Each flow has a unique id in the file, and its events are bound to the begin of their spans.
// `otherData` contains the notes and, for each process, its host, its clock and its dropped spans.
[[nodiscard]] std::string chrome_trace_json(const Trace& trace);
[[nodiscard]] Result<> write_chrome_trace(const std::string& path, const Trace& trace);
[[nodiscard]] std::string chrome_trace_json(const std::vector<ProcessTrace>& processes);
[[nodiscard]] Result<> write_chrome_trace(const std::string& path,
                                          const std::vector<ProcessTrace>& processes);

}  // namespace wsync::trace
