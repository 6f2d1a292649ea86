#include "bench/gpu_probe/driver.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

namespace wsync::probe {
namespace {

void* library = nullptr;

}  // namespace

bool open_driver() {
  library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "gpu_probe: no NVIDIA driver: %s\n", ::dlerror());
  return library != nullptr;
}

void* driver_function(const char* name) { return ::dlsym(library, name); }

const char* result_name(CUresult result) {
  const char* name = nullptr;
  if (CU(cuGetErrorName) == nullptr || CU(cuGetErrorName)(result, &name) != CUDA_SUCCESS)
    return "an unknown result";
  return name;
}

void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "gpu_probe: %s fails with %s; the questions after it were not asked\n", call,
               result_name(result));
  std::fflush(nullptr);
  std::exit(1);
}

}  // namespace wsync::probe
