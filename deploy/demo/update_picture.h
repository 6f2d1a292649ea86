// Draws the picture of one update in one sidecar from its trace.
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
  std::uint32_t engines = 1;   // engines of this sidecar
  std::uint32_t devices = 1;   // devices of this sidecar
  std::uint32_t sidecars = 1;  // sidecars that switch at the same time
  TimePoint begin{};           // time range of the update
  TimePoint end{};
};
// Draws the pipeline's lanes of one sidecar while its engines were paused between `begin` and
// `end`. Errors: kNotFound if they were not paused then; those of writing a file.
[[nodiscard]] Result<> write_update_picture(const std::string& path,
                                            const trace::ProcessTrace& sidecar,
                                            const UpdatePicture& picture);

}  // namespace wsync::cli
