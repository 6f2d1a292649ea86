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
         find(library, "emulated_cuda_report", found.report) &&
         find(library, "cuCtxGetDevice", found.current_device) &&
         find(library, "cuDeviceGetUuid_v2", found.device_uuid);
}

}  // namespace

const Driver* driver() {
  static Driver found;
  static const bool there = load(found);
  return there ? &found : nullptr;
}

}  // namespace emulated_nccl
