// Spans as a Chrome trace file: https://ui.perfetto.dev and chrome://tracing load it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/trace/recorder.h"

namespace wsync::trace {

// One process of the trace; its lanes become threads, in the order of their first span.
struct ProcessTrace {
  std::string name;  // "sidecar host0"
  std::uint32_t pid = 0;
  std::vector<Span> spans;
};

// The file's text. Times are microseconds of the host's monotonic clock, so traces of several
// processes of one host stand side by side.
[[nodiscard]] std::string chrome_trace_json(const std::vector<ProcessTrace>& processes);
[[nodiscard]] Result<> write_chrome_trace(const std::string& path,
                                          const std::vector<ProcessTrace>& processes);

}  // namespace wsync::trace
