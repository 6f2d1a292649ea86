// Devices and contexts of the emulated driver. The state's mutex is held by the caller where a
// function says so.
#pragma once

#include <memory>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

// Number of GPUs that this process sees.
[[nodiscard]] int device_count();
// Its number on the machine.
[[nodiscard]] int machine_number(int device);
// CUDA_ERROR_INVALID_DEVICE, reported, for one that is not there.
[[nodiscard]] CUresult check_device(const char* name, CUdevice device);
// True when kernels of `context` reach memory that a context of `device` allocated; the mutex is
// held.
[[nodiscard]] bool reaches(const Context& context, int device);

}  // namespace emulated_cuda
