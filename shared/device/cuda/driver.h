// The CUDA driver, as far as it is used here: a table of its functions, found at run time, and what
// its error codes become. No program links the driver; this folder alone knows it.
//
// A call goes through the table: `check(cuda, cuda.cuMemFree(address), "...")`. The names of cuda.h
// are macros that carry the version of a function's signature (cuMemAlloc is cuMemAlloc_v2), so the
// members and the symbols looked for are those of the header that this was compiled with.
#pragma once

#include <cstdint>
#include <cuda.h>
#include <source_location>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::device::cuda {

// Exactly what is used. A name more is an entry here, a name less a line gone.
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
  CALL(cuMemcpyHtoDAsync) CALL(cuMemcpyDtoHAsync) CALL(cuMemcpyAsync) CALL(cuMemsetD8Async) \
  CALL(cuStreamCreateWithPriority) CALL(cuStreamDestroy) CALL(cuStreamQuery)                \
  CALL(cuStreamWaitEvent) CALL(cuEventCreate) CALL(cuEventDestroy) CALL(cuEventRecord)      \
  CALL(cuEventQuery) CALL(cuIpcGetMemHandle) CALL(cuIpcOpenMemHandle)                       \
  CALL(cuIpcCloseMemHandle) CALL(cuIpcGetEventHandle) CALL(cuIpcOpenEventHandle)
// clang-format on

// A copy with other functions in it injects failures in tests.
struct Driver {
#define WSYNC_CUDA_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  WSYNC_CUDA_DRIVER_CALLS(WSYNC_CUDA_DRIVER_MEMBER)  // NOLINT(readability-identifier-naming)
#undef WSYNC_CUDA_DRIVER_MEMBER
  bool has_gpus = true;  // false: it started and said that this process sees none
};

// The driver of this machine, loaded and initialised once. kRefused, in words: there is none, it
// lacks a function, does not start, or is of an older major release than the kernels (they run on
// drivers of their own release's and later ones). A machine without GPUs is no error. Any thread.
[[nodiscard]] Result<const Driver*> driver();

// The functions of the shared library `name`, initialised: driver() without memory.
[[nodiscard]] Result<Driver> load_driver(const char* name);

// The newest CUDA version that the driver can do: 13000 is 13.0.
[[nodiscard]] Result<std::uint32_t> driver_version(const Driver& cuda);

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"; a code that the driver does not know: its number.
[[nodiscard]] std::string describe(const Driver& cuda, CUresult code);

// Success, or an Error "<what>: <describe(code)>". No memory is kResourceExhausted; no such device,
// function, permission or support is kRefused; a value or handle that the driver refuses is
// kInvalidInput; the rest, faults of the hardware and of kernels among them, is kIo.
[[nodiscard]] Result<> check(const Driver& cuda, CUresult code, std::string_view what,
                             std::source_location where = std::source_location::current());

// What a destructor cannot report. Codes that only say that the driver is going down with the
// process, or repeat a fault that the stream has reported (after one, every call of the context
// returns it), are no failures. The rest is a defect of ours, leaves at most something unreleased,
// and is counted, so that tests see it.
void released(const Driver& cuda, CUresult code, const char* what) noexcept;
struct ReleaseFailures {
  std::uint64_t count = 0;
  std::string first;  // "cuMemFree: CUDA_ERROR_INVALID_VALUE (invalid argument)"
};
[[nodiscard]] ReleaseFailures release_failures();

}  // namespace wsync::device::cuda
