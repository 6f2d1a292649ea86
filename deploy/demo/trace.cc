#include "deploy/demo/trace.h"

#include <fstream>
#include <thread>

#include "inference_side/reload/pipeline_trace.h"
#include "shared/base/format.h"
#include "shared/command/context.h"
#include "shared/observe/trace/chrome_trace_reader.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::cli {
namespace {

std::string subtitle_of(const UpdatePicture& picture) {
  return fmt::format(
      "version {} on {}; separate host devices, buffers of {}; {}", picture.version.to_string(),
      picture.sidecars == 1
          ? std::string("one sidecar")
          : fmt::format("one of {} sidecars that switch at the same time", picture.sidecars),
      human_bytes(picture.buffer_bytes), machine_text());
}

}  // namespace

std::string machine_text() {
  std::string model = "an unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    model = line.substr(colon + 2);
    break;
  }
  return fmt::format("{} cores of {}", std::thread::hardware_concurrency(), model);
}

Result<std::vector<trace::ProcessTrace>> read_traces(const std::string& path) {
  return trace::read_chrome_trace(path);
}

Result<trace::ProcessTrace> read_trace(const std::string& path) {
  auto processes = WSYNC_TRY(read_traces(path));
  if (processes.size() != 1)
    return fail(ErrorCode::kInternal,
                fmt::format("{}: a trace of {} processes, expected one", path, processes.size()));
  return std::move(processes.front());
}

Result<> write_update_picture(const std::string& path, const trace::ProcessTrace& sidecar,
                              const UpdatePicture& picture) {
  for (const trace::PauseBand& band : trace::pause_bands(sidecar.spans))
    if (band.begin >= picture.begin && band.end <= picture.end)
      return trace::write_timeline_svg(
          path, trace::spans_between(sidecar.spans, band.begin, band.end),
          {.title = fmt::format("One update as measured: {} into {} engine{} through {} devices",
                                human_bytes(picture.model_bytes), picture.engines,
                                picture.engines == 1 ? "" : "s", picture.devices),
           .subtitle = subtitle_of(picture),
           .lanes = reload::PipelineTrace::chart_lanes(picture.devices)});
  return fail(ErrorCode::kNotFound,
              fmt::format("the trace of {} shows no pause for the picture", sidecar.name));
}

}  // namespace wsync::cli
