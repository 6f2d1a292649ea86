// Traces of a running fleet: asked for, put on one clock, cut to what is wanted, written.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "shared/observe/trace/chrome_trace.h"

namespace wsync::cli {

// The whole of an answer on the coordinator's clock, with the flows of its updates. Who could not
// be asked, or gave what cannot be read, is a note.
[[nodiscard]] trace::Trace trace_of(const control::TraceAnswer& answer);

// Asks the coordinator at `address`, or one sidecar. `age`: only of what ended no longer ago; 0:
// everything that is kept. Errors as control::request().
[[nodiscard]] Result<trace::Trace> ask_trace(const std::string& address,
                                             std::chrono::nanoseconds age,
                                             std::chrono::milliseconds deadline);

// The versions that spans tell of, those last heard of first.
[[nodiscard]] std::vector<std::string> traced_versions(const trace::Trace& trace);
// Keeps the spans of these versions, and those of none that lie in the time of these; flows are
// made anew.
void keep_versions(trace::Trace& trace, const std::vector<std::string>& versions);

// The complaint about a file that a trace is to be written to, before anything is done: kNotFound
// or kInvalidInput unless its directory is there and it is none itself.
[[nodiscard]] Result<> check_trace_file(const std::string& path);

// "4 processes, 310 spans, 24 flows" and the notes, for people.
[[nodiscard]] std::string trace_text(const trace::Trace& trace);

// What a command with --trace does beside its work. Nothing without a path.
class CommandTrace {
 public:
  // Time begins now. Errors as check_trace_file().
  [[nodiscard]] static Result<CommandTrace> begin(const std::string& path);
  [[nodiscard]] bool wanted() const noexcept { return !path_.empty(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::chrono::nanoseconds age() const { return now() - begin_; }
  // Asks what the fleet has done since, and writes it: what is said of it, a sentence for people.
  [[nodiscard]] Result<std::string> write(const std::string& address) const;
  [[nodiscard]] Result<std::string> write(const control::TraceAnswer& answer) const;

 private:
  CommandTrace(std::string path, TimePoint begin) : path_(std::move(path)), begin_(begin) {}
  [[nodiscard]] Result<std::string> write(const trace::Trace& trace) const;
  std::string path_;
  TimePoint begin_;
};

// The value of trace_file for `--trace FILE`: FILE without its ending .json, which is put back when
// it is written. Errors as check_trace_file(); kInvalidInput for another ending.
[[nodiscard]] Result<std::string> trace_file_setting(const std::string& path);

}  // namespace wsync::cli
