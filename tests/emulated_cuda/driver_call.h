// Functions of the CUDA driver that is loaded, the emulated one or a real one, for tests that do
// what a framework does beside the product.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

namespace wsync {

// nullptr if the driver has no such function.
template <class Function>
Function* driver_call(const char* name) {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(::dlsym(driver, name));
}
// One of cuda.h, whose names are macros that carry a version: the second macro sees them expanded.
#define DRIVER_NAME(name) #name
#define CALL_DRIVER(name) ::wsync::driver_call<decltype(::name)>(DRIVER_NAME(name))

}  // namespace wsync
