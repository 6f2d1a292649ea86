// The CUDA backend's Device: one logical device on a GPU. Several may share a GPU.
#pragma once

#include <chrono>
#include <memory>

#include "shared/device/cuda/driver.h"
#include "shared/device/cuda/stream.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {

// `cuda` must outlive the device. `settle_limit` applies to its streams. kRefused if this process
// does not see options.gpu.
[[nodiscard]] Result<std::unique_ptr<Device>> make_cuda_device(
    const Driver& cuda, const DeviceOptions& options,
    std::chrono::nanoseconds settle_limit = kSettleLimit);

}  // namespace wsync::device::cuda
