// What was traced of a demo's fleet, brought together: one Chrome trace of all processes, and the
// picture of one update.
#pragma once

#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/weights/version.h"

namespace wsync::cli {

// The processes of a Chrome trace. Errors as trace::read_chrome_trace().
[[nodiscard]] Result<std::vector<trace::ProcessTrace>> read_traces(const std::string& path);
// The same of a file with one process. kInternal with another number of them.
[[nodiscard]] Result<trace::ProcessTrace> read_trace(const std::string& path);
// "2 cores of AMD EPYC 7B13"
[[nodiscard]] std::string machine_text();

struct UpdatePicture {
  Version version;
  std::uint64_t model_bytes = 0;
  std::uint64_t buffer_bytes = 0;
  std::uint32_t engines = 1;   // of the pictured sidecar
  std::uint32_t devices = 1;   // the same
  std::uint32_t sidecars = 1;  // that switch at the same time
  TimePoint begin{};           // the update lies between these
  TimePoint end{};
};
// Draws the pipeline's lanes of one sidecar while its engines were paused between `begin` and
// `end`. kNotFound when they were not.
[[nodiscard]] Result<> write_update_picture(const std::string& path,
                                            const trace::ProcessTrace& sidecar,
                                            const UpdatePicture& picture);

}  // namespace wsync::cli
