// What the emulated NCCL uses of the emulated driver (tests/emulated_cuda/emulated_cuda.h), found
// in the libcuda.so.1 that the process has loaded.
#pragma once

#include "tests/emulated_cuda/emulated_cuda.h"

namespace emulated_nccl {

struct Driver {
  decltype(&emulated_cuda_enqueue) enqueue = nullptr;
  decltype(&emulated_cuda_stopping) stopping = nullptr;
  decltype(&emulated_cuda_view) view = nullptr;
  decltype(&emulated_cuda_stream_device) stream_device = nullptr;
  decltype(&emulated_cuda_is_retained) is_retained = nullptr;
  decltype(&emulated_cuda_report) report = nullptr;
  CUresult (*current_context)(CUcontext*) = nullptr;  // cuCtxGetCurrent
  CUresult (*device_count)(int*) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;  // cuDevicePrimaryCtxRetain
  CUresult (*release)(CUdevice) = nullptr;
  CUresult (*device_uuid)(CUuuid*, CUdevice) = nullptr;
};

// Null where the emulated driver is not loaded.
const Driver* driver();

// The device whose primary context is current on this thread; false when none is.
bool current_device(const Driver& driver, CUdevice& device);

}  // namespace emulated_nccl
