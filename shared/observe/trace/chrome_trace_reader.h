// Reads the Chrome traces that chrome_trace.h writes: the demo joins those of its processes, and
// the benchmark of the overhead counts their spans. Perfetto reads the traces of other programs.
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
  std::uint64_t depth = limits::kTraceFileDepth;  // of nested lists and objects
};

// The processes of the text in the order of their first event, each with its spans in the order of
// the file. The lane of a span is the name of its thread ("thread 7" without one), its label the
// argument "label". Flows and `otherData` are not read, and other kinds of events are ignored.
// kInvalidInput names the event: text that is not JSON or not such a trace, times that are out of
// range, and more than the limits allow. Memory is never allocated for more than one event beside
// the spans. Thread: any.
[[nodiscard]] Result<std::vector<ProcessTrace>> parse_chrome_trace(std::string_view text,
                                                                   const ReadLimits& limits = {});
// The same for a file; errors name the file. kNotFound, kIo; kInvalidInput when it is too large.
[[nodiscard]] Result<std::vector<ProcessTrace>> read_chrome_trace(const std::string& path,
                                                                  const ReadLimits& limits = {});

}  // namespace wsync::trace
