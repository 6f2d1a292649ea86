#include "inference_side/sidecar/sidecar_trace.h"

#include <unistd.h>
#include <utility>
#include <vector>

#include "inference_side/reload/pipeline_trace.h"
#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/config/sidecar_config.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/span_codec.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::agent {

control::TraceAnswer answer_trace(const trace::Recorder& trace, const std::string& sidecar,
                                  const control::TraceQuestion& question, TimePoint received) {
  control::TraceProcess process{.name = "sidecar " + sidecar,
                                .host = host_name(),
                                .pid = static_cast<std::uint32_t>(::getpid()),
                                .boot_id = boot_id(),
                                .asked_ns = question.asked_ns,
                                .received_ns = static_cast<std::int64_t>(received)};
  trace::EncodedSpans encoded = trace::answer_spans(
      trace, std::chrono::nanoseconds(question.age_ns), question.max_bytes, received);
  process.dropped = encoded.left_out;
  process.spans = std::move(encoded.bytes);
  process.answered_ns = static_cast<std::int64_t>(now());
  control::TraceAnswer answer;
  answer.processes.push_back(std::move(process));
  return answer;
}

void write_trace_files(const trace::Recorder& trace, const config::SidecarConfig& config,
                       std::uint64_t buffer_bytes) {
  if (config.trace_file.empty()) return;
  const std::string process = "sidecar " + config.name;
  const std::vector<trace::Span> spans = trace.spans();
  trace::Trace traces{.processes = {{.name = process,
                                     .pid = static_cast<std::uint32_t>(::getpid()),
                                     .spans = spans,
                                     .host = host_name(),
                                     .dropped = trace.dropped()}}};
  traces.flows = trace::update_flows(traces.processes);
  const auto traced = trace::write_chrome_trace(config.trace_file + ".json", traces);
  if (!traced) log_warning("trace: {}", traced.error().message());
  // The picture shows the latest update.
  const std::vector<trace::PauseBand> pauses = trace::pause_bands(spans);
  const auto drawn = trace::write_timeline_svg(
      config.trace_file + ".svg",
      pauses.empty() ? spans : trace::spans_between(spans, pauses.back().begin, pauses.back().end),
      {.title = "Weight pipeline of " + process,
       .subtitle = fmt::format("{} devices, buffers of {} MiB", config.devices.count,
                               buffer_bytes / limits::kMiB),
       .lanes = reload::PipelineTrace::chart_lanes(config.devices.count)});
  if (!drawn) log_warning("trace: {}", drawn.error().message());
}

}  // namespace wsync::agent
