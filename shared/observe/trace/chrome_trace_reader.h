// Reads Chrome traces: those that chrome_trace.h writes, and those of other programs as far as they
// have spans (complete events, and begin and end events).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/limits.h"

namespace wsync::trace {

struct ReadLimits {
  std::uint64_t bytes = limits::kTraceFileBytes;
  std::uint64_t events = limits::kTraceFileEvents;
  std::uint64_t depth = limits::kTraceFileDepth;  // of nested lists and objects
};

// The processes of the text, by their first event, each with its spans in the order of the file; a
// lane is the name of its thread ("thread 7" without one). Labels are the argument "label", flows
// the events of one id, name and category, by time, each bound to the innermost span of its thread
// that its time lies in. Arguments that are neither numbers nor strings are left out, as are events
// of other kinds. kInvalidInput, with the event's number: text that is no JSON, or another shape of
// it than the format's, times that are no numbers or out of range, and what passes the limits;
// nothing is allocated for more than they allow.
[[nodiscard]] Result<Trace> parse_chrome_trace(std::string_view text,
                                               const ReadLimits& limits = {});
// The same of a file; errors name it. kNotFound, kIo; kInvalidInput for one over the limit.
[[nodiscard]] Result<Trace> read_chrome_trace(const std::string& path,
                                              const ReadLimits& limits = {});

}  // namespace wsync::trace
