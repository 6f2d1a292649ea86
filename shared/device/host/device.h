// Host devices. `separate` has its own memory and streams; `unified` uses staged host memory in
// place.
#pragma once

#include "shared/device/device.h"

namespace wsync::device::host {

// options.kind must be kUnified or kSeparate.
[[nodiscard]] Result<std::unique_ptr<Device>> make_host_device(const DeviceOptions& options);

}  // namespace wsync::device::host
