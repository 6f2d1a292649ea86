// The functions of libcuda.so.1 that the probe calls. They are found at run time, so that the probe
// is built without a driver and runs where it is.
#pragma once

#include <cstddef>
#include <cuda.h>

namespace wsync::probe {

// Opens libcuda.so.1. Prints why and returns false if there is none.
bool open_driver();

// The address of a function of the driver; null if this driver does not have it.
void* driver_function(const char* name);

// The name of a result, such as "CUDA_ERROR_INVALID_VALUE".
const char* result_name(CUresult result);

// Ends the process with status 1 and a sentence if the result of `call` is an error.
void must(CUresult result, const char* call);

}  // namespace wsync::probe

#define WSYNC_TEXT_OF(text) #text
#define WSYNC_TEXT(name) WSYNC_TEXT_OF(name)
// A function of the driver. cuda.h names the newest variant of a function by a macro, such as
// cuMemAlloc for cuMemAlloc_v2, and the text has that name.
#define CU(name) \
  (reinterpret_cast<decltype(&name)>(::wsync::probe::driver_function(WSYNC_TEXT(name))))
#define CU_MUST(name, ...) ::wsync::probe::must(CU(name)(__VA_ARGS__), #name)
