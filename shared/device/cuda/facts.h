// Reads properties of the GPUs and their driver without using the GPUs (CudaFacts), for `wsync
// doctor` and the selection of devices.
#pragma once

#include <filesystem>

#include "shared/base/error.h"
#include "shared/device/cuda/driver.h"
#include "shared/device/cuda_library.h"

namespace wsync::device::cuda {

// Reads the facts of the driver's GPUs. Their location is read from files below `root`:
//   proc/driver/nvidia/version or sys/module/nvidia/version        release of the kernel module
//   sys/bus/pci/devices/<pci>/{numa_node,current_link_*,max_link_*}
// The fact stays empty if its file is missing or has no usable content. Errors: the driver's.
// Thread: any.
[[nodiscard]] Result<CudaFacts> read_facts(const Driver& cuda,
                                           const std::filesystem::path& root = "/");

}  // namespace wsync::device::cuda
