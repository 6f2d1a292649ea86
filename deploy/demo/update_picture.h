// The picture of one update in one sidecar, drawn from what it traced.
#pragma once

#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/weights/version.h"

namespace wsync::cli {

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
// `end`. kNotFound when they were not; errors of writing.
[[nodiscard]] Result<> write_update_picture(const std::string& path,
                                            const trace::ProcessTrace& sidecar,
                                            const UpdatePicture& picture);

}  // namespace wsync::cli
