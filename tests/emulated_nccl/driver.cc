#include "tests/emulated_nccl/driver.h"

#include <dlfcn.h>

namespace emulated_nccl {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool load(Driver& found) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr && find(library, "emulated_cuda_enqueue", found.enqueue) &&
         find(library, "emulated_cuda_stopping", found.stopping) &&
         find(library, "emulated_cuda_view", found.view) &&
         find(library, "emulated_cuda_stream_device", found.stream_device) &&
         find(library, "emulated_cuda_is_retained", found.is_retained) &&
         find(library, "emulated_cuda_report", found.report) &&
         find(library, "cuCtxGetCurrent", found.current_context) &&
         find(library, "cuDeviceGetCount", found.device_count) &&
         find(library, "cuDevicePrimaryCtxRetain", found.retain) &&
         find(library, "cuDevicePrimaryCtxRelease_v2", found.release) &&
         find(library, "cuDeviceGetUuid_v2", found.device_uuid);
}

}  // namespace

const Driver* driver() {
  static Driver found;
  static const bool there = load(found);
  return there ? &found : nullptr;
}

bool current_device(const Driver& driver, CUdevice& device) {
  CUcontext current = nullptr;
  int count = 0;
  if (driver.current_context(&current) != CUDA_SUCCESS || current == nullptr) return false;
  if (driver.device_count(&count) != CUDA_SUCCESS) return false;
  for (device = 0; device < count; ++device) {
    CUcontext primary = nullptr;
    if (driver.retain(&primary, device) != CUDA_SUCCESS) continue;
    driver.release(device);
    if (primary == current) return true;
  }
  return false;
}

}  // namespace emulated_nccl
