// Collects the traces of a running fleet, aligns them to one clock, filters them and writes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/messages.h"
#include "shared/observe/trace/chrome_trace.h"

namespace wsync::cli {

// Converts an answer to one trace on the coordinator's clock, including the flows of its updates.
// Adds a note for each process that could not be asked or that returned unreadable data.
[[nodiscard]] trace::Trace trace_of(const control::TraceAnswer& answer);

// Requests traces from the coordinator at `address`, or from one sidecar. `age` limits the answer
// to spans that ended at most this long ago; 0 requests all retained spans. `key`: of the command,
// if the peer has keys. Errors as control::request().
[[nodiscard]] Result<trace::Trace> ask_trace(const std::string& address,
                                             std::chrono::nanoseconds age,
                                             std::chrono::milliseconds deadline,
                                             const std::optional<control::KeyFile>& key);

// Returns the versions that occur in spans, most recent first.
[[nodiscard]] std::vector<std::string> traced_versions(const trace::Trace& trace);
// Keeps the spans of these versions, and spans without a version that fall within their time range.
// Rebuilds the flows.
void keep_versions(trace::Trace& trace, const std::vector<std::string>& versions);

// Checks the path of a trace file before any work is done. Returns kNotFound or kInvalidInput
// unless the parent directory exists and the path itself is not a directory.
[[nodiscard]] Result<> check_trace_file(const std::string& path);

// Returns a summary for people, such as "4 processes, 310 spans, 24 flows", followed by the notes.
[[nodiscard]] std::string trace_text(const trace::Trace& trace);

// Implements --trace for a command. Does nothing if the path is empty.
class CommandTrace {
 public:
  // Starts the time range of the trace. Errors as check_trace_file().
  [[nodiscard]] static Result<CommandTrace> begin(const std::string& path);
  [[nodiscard]] bool wanted() const noexcept { return !path_.empty(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::chrono::nanoseconds age() const { return now() - begin_; }
  // Requests the spans of the fleet since begin() and writes them. Returns a sentence for people
  // about the result.
  [[nodiscard]] Result<std::string> write(const std::string& address,
                                          const std::optional<control::KeyFile>& key) const;
  [[nodiscard]] Result<std::string> write(const control::TraceAnswer& answer) const;

 private:
  CommandTrace(std::string path, TimePoint begin) : path_(std::move(path)), begin_(begin) {}
  [[nodiscard]] Result<std::string> write(const trace::Trace& trace) const;
  std::string path_;
  TimePoint begin_;
};

// Returns the value of trace_file for `--trace FILE`: FILE without its suffix .json, which is added
// again when the file is written. Errors as check_trace_file(); kInvalidInput for another suffix.
[[nodiscard]] Result<std::string> trace_file_setting(const std::string& path);

}  // namespace wsync::cli
