// Reads the Chrome traces that chrome_trace.h writes. The demo joins the traces of its processes
// with it, and the overhead benchmark counts their spans. Traces of other programs can be opened
// with Perfetto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/limits.h"

namespace wsync::trace {

struct ReadLimits {
  std::uint64_t bytes = limits::kTraceFileBytes;
  std::uint64_t events = limits::kTraceFileEvents;
  std::uint64_t depth = limits::kTraceFileDepth;  // nesting of lists and objects
};

// Returns the processes in the order of their first event. The spans of each are in file order. The
// lane of a span is the name of its thread ("thread 7" if it has none), its label is the argument
// "label". Flows, `otherData` and other kinds of events are ignored. kInvalidInput names the event
// if the text is not JSON or not such a trace, if a time is out of range, or if a limit is
// exceeded. Besides the spans, at most one event is held in memory. Thread: any.
[[nodiscard]] Result<std::vector<ProcessTrace>> parse_chrome_trace(std::string_view text,
                                                                   const ReadLimits& limits = {});
// As parse_chrome_trace(), for a file; errors name the file. kNotFound; kIo; kInvalidInput if the
// file is too large.
[[nodiscard]] Result<std::vector<ProcessTrace>> read_chrome_trace(const std::string& path,
                                                                  const ReadLimits& limits = {});

}  // namespace wsync::trace
