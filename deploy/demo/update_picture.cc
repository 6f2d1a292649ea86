#include "deploy/demo/update_picture.h"

#include "deploy/demo/demo.h"
#include "inference_side/reload/pipeline_trace.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::cli {

Result<> write_update_picture(const std::string& path, const trace::ProcessTrace& sidecar,
                              const UpdatePicture& picture) {
  const std::string where =
      picture.sidecars == 1
          ? "one sidecar"
          : fmt::format("one of {} sidecars that switch at the same time", picture.sidecars);
  for (const trace::PauseBand& band : trace::pause_bands(sidecar.spans))
    if (band.begin >= picture.begin && band.end <= picture.end)
      return trace::write_timeline_svg(
          path, trace::spans_between(sidecar.spans, band.begin, band.end),
          {.title = fmt::format("One update as measured: {} into {} through {} devices",
                                human_bytes(picture.model_bytes),
                                counted(picture.engines, "engine"), picture.devices),
           .subtitle = fmt::format("version {} on {}; separate host devices, buffers of {}; {}",
                                   picture.version.to_string(), where,
                                   human_bytes(picture.buffer_bytes), machine_text()),
           .lanes = reload::PipelineTrace::chart_lanes(picture.devices)});
  return fail(ErrorCode::kNotFound,
              fmt::format("the trace of {} shows no pause for the picture", sidecar.name));
}

}  // namespace wsync::cli
