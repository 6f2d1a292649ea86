// Host devices: `separate` has memory and streams of its own, `unified` uses staged host memory in
// place.
#pragma once

#include "shared/device/device.h"

namespace wsync::device::host {

// options.kind is kUnified or kSeparate.
[[nodiscard]] Result<std::unique_ptr<Device>> make_host_device(const DeviceOptions& options);

}  // namespace wsync::device::host
