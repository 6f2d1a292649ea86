// A table of the CUDA driver functions in use, resolved at run time, and the conversion of the
// driver's error codes. No program links the driver; only this folder uses it.
//
// A call goes through the table: `check(cuda, cuda.cuMemFree(address), "...")`. The names in cuda.h
// are macros that contain the version of a function's signature (cuMemAlloc is cuMemAlloc_v2). The
// members and the resolved symbols are therefore those of the header that this code was compiled
// with.
#pragma once

#include <cstdint>
#include <cuda.h>
#include <source_location>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::device::cuda {

// Exactly the functions in use. To use another function, add an entry; remove entries that are no
// longer used.
// clang-format off
#define WSYNC_CUDA_DRIVER_CALLS(CALL)                                                       \
  CALL(cuInit) CALL(cuDriverGetVersion) CALL(cuGetErrorName) CALL(cuGetErrorString)         \
  CALL(cuDeviceGetCount) CALL(cuDeviceGet) CALL(cuDeviceGetName) CALL(cuDeviceGetUuid_v2)   \
  CALL(cuDeviceTotalMem) CALL(cuDeviceGetAttribute) CALL(cuDeviceCanAccessPeer)             \
  CALL(cuDevicePrimaryCtxRetain) CALL(cuDevicePrimaryCtxRelease) CALL(cuCtxPushCurrent)     \
  CALL(cuCtxPopCurrent) CALL(cuCtxSetCurrent) CALL(cuCtxEnablePeerAccess)                   \
  CALL(cuCtxGetStreamPriorityRange) CALL(cuModuleLoadData) CALL(cuModuleUnload)             \
  CALL(cuModuleGetFunction) CALL(cuLaunchKernel) CALL(cuMemGetInfo) CALL(cuMemAlloc)        \
  CALL(cuMemFree) CALL(cuMemAllocHost) CALL(cuMemFreeHost) CALL(cuMemHostRegister)          \
  CALL(cuMemHostUnregister) CALL(cuMemGetAddressRange) CALL(cuPointerGetAttribute)          \
  CALL(cuMemGetAllocationGranularity) CALL(cuMemCreate) CALL(cuMemRelease)                  \
  CALL(cuMemAddressReserve) CALL(cuMemAddressFree) CALL(cuMemMap) CALL(cuMemUnmap)          \
  CALL(cuMemSetAccess) CALL(cuMemExportToShareableHandle)                                   \
  CALL(cuMemImportFromShareableHandle) CALL(cuMemcpyHtoDAsync) CALL(cuMemcpyDtoHAsync)      \
  CALL(cuMemcpy2DAsync) CALL(cuMemcpyAsync) CALL(cuMemcpyPeerAsync) CALL(cuMemsetD8Async)                         \
  CALL(cuStreamCreateWithPriority) CALL(cuStreamDestroy) CALL(cuStreamQuery)                \
  CALL(cuStreamWaitEvent)                                                                   \
  CALL(cuEventCreate) CALL(cuEventDestroy) CALL(cuEventRecord) CALL(cuEventQuery)
// clang-format on

// Tests inject failures with a copy that contains other functions.
struct Driver {
#define WSYNC_CUDA_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  WSYNC_CUDA_DRIVER_CALLS(WSYNC_CUDA_DRIVER_MEMBER)  // NOLINT(readability-identifier-naming)
#undef WSYNC_CUDA_DRIVER_MEMBER
  bool has_gpus = true;  // false: the driver started, but this process sees no GPU
};

// Returns the driver of this machine, loaded and initialised once. kRefused, with the reason: there
// is no driver, it lacks a function, it does not start, or its major release is older than that of
// the kernels (kernels run on drivers of their own and later releases). A machine without GPUs is
// not an error. Thread: any.
[[nodiscard]] Result<const Driver*> driver();

// Loads and initialises the functions of the shared library `name`. Like driver(), but without a
// cached result.
[[nodiscard]] Result<Driver> load_driver(const char* name);

// Returns the newest CUDA version that the driver supports: 13000 is 13.0.
[[nodiscard]] Result<std::uint32_t> driver_version(const Driver& cuda);

// Returns "CUDA_ERROR_OUT_OF_MEMORY (out of memory)", or the number of a code that the driver does
// not know.
[[nodiscard]] std::string describe(const Driver& cuda, CUresult code);

// Returns success, or an Error "<what>: <describe(code)>". kResourceExhausted: no memory; kRefused:
// missing device, function, permission or support; kInvalidInput: a value or handle that the driver
// rejects; kIo: everything else, including faults of hardware and kernels.
[[nodiscard]] Result<> check(const Driver& cuda, CUresult code, std::string_view what,
                             std::source_location where = std::source_location::current());

// Records errors that a destructor cannot return. Two kinds of codes are ignored: the driver is
// shutting down with the process, or the code repeats a fault that a stream has already reported
// (after a fault, every call of the context returns it). Any other code is a defect of wsync that
// at most leaves an object unreleased. It is counted, so that tests can detect it.
void released(const Driver& cuda, CUresult code, const char* what) noexcept;
struct ReleaseFailures {
  std::uint64_t count = 0;
  std::string first;  // "cuMemFree: CUDA_ERROR_INVALID_VALUE (invalid argument)"
};
[[nodiscard]] ReleaseFailures release_failures();

}  // namespace wsync::device::cuda
