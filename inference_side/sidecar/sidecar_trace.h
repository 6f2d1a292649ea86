// Uses of a sidecar's trace: the answer to `wsync trace`, and the files that are written at
// shutdown.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/clock.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/messages.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::agent {

// Returns the latest spans, as many as the question requests. `received`: time at which the
// question arrived. Thread: any.
[[nodiscard]] control::TraceAnswer answer_trace(const trace::Recorder& trace,
                                                const std::string& sidecar,
                                                const control::TraceQuestion& question,
                                                TimePoint received);

// Writes `trace_file`.json with all spans, and `trace_file`.svg with those of the latest update.
// Does nothing without a trace_file. `buffer_bytes`: size of the device buffers; 0 if there are
// none. Failures are logged.
void write_trace_files(const trace::Recorder& trace, const config::SidecarConfig& config,
                       std::uint64_t buffer_bytes);

}  // namespace wsync::agent
