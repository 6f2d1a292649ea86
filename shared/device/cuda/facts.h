// What is known of the GPUs and their driver without using them (CudaFacts), for `wsync doctor` and
// the choice of devices.
#pragma once

#include <filesystem>

#include "shared/base/error.h"
#include "shared/device/cuda/driver.h"
#include "shared/device/cuda_library.h"

namespace wsync::device::cuda {

// Facts of the driver's GPUs. What the system says of their place comes from files below `root`:
//   proc/driver/nvidia/version or sys/module/nvidia/version        release of the kernel module
//   sys/bus/pci/devices/<pci>/{numa_node,current_link_*,max_link_*}
// A file that is not there or says nothing leaves its fact empty. Errors: the driver's. Any thread.
[[nodiscard]] Result<CudaFacts> read_facts(const Driver& cuda,
                                           const std::filesystem::path& root = "/");

}  // namespace wsync::device::cuda
