// An entry whose backend does not fit: another build, another size, no build, or none at all.
#include "shared/device/cuda_library.h"

extern "C" const wsync::device::CudaBackend* wsync_cuda_backend() {
#if defined(WSYNC_TEST_NO_BACKEND)
  return nullptr;
#else
  static const wsync::device::CudaBackend backend = [] {
    wsync::device::CudaBackend made;
    made.size = sizeof made;
#if defined(WSYNC_TEST_OTHER_SIZE)
    made.size += 8;
#elif defined(WSYNC_TEST_OTHER_BUILD)
    made.build = "wsync 0.0.1, compiler of yesterday";
#endif
    return made;
  }();
  return &backend;
#endif
}
