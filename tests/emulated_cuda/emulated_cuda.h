// What the emulated driver (README.md here) exports beside the functions of cuda.h, for the
// emulated NCCL and for tests. A library finds them in the libcuda.so.1 that is already loaded:
// dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "emulated_cuda_enqueue").
//
// Any thread, unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
#include <cuda.h>

extern "C" {

// Work of a library on a stream. It runs in the stream's order on the stream's thread, so it may
// block, and ends soon after emulated_cuda_stopping() is true; it does not call the driver. What it
// returns beside CUDA_SUCCESS sticks to the stream's context, as a failed kernel's error does.
using EmulatedCudaWork = CUresult (*)(void* argument);

// Enqueues `work(argument)`; `name` (a literal) is for error records. It is called exactly once,
// or, when the context has failed before, not at all and `skipped(argument)` instead, which may be
// null. Errors as cuLaunchKernel() for a bad stream or context, and CUDA_ERROR_NOT_READY while a
// call of another thread keeps everybody from launching; nothing is called then.
CUresult emulated_cuda_enqueue(CUstream stream, EmulatedCudaWork work, void (*skipped)(void*),
                               void* argument, const char* name);

// For work that waits for something from outside: true when this process is exiting.
int emulated_cuda_stopping();

// Where host code can read and write `bytes` bytes of device memory at `address`, which all lie in
// one live allocation that the GPU of `stream` can reach (or in registered host memory); null and
// an error record otherwise. The bytes stay there until the memory is freed: only for work of a
// stream.
void* emulated_cuda_view(CUstream stream, CUdeviceptr address, size_t bytes);

// The GPU of a stream, as cuDeviceGet() numbers it; -1 for none of this process's streams.
int emulated_cuda_stream_device(CUstream stream);

// 1 while this process holds the primary context of a GPU, as cuDeviceGet() numbers it.
int emulated_cuda_is_retained(int device);

// Adds a line to the error file (WSYNC_EMULATED_CUDA_REPORT). `what` has no line break.
void emulated_cuda_report(const char* what);

// How often this process called `function` (its exported name: "cuMemAlloc_v2"), or did what only
// the emulation counts: "pageable copy", "kernel". 0 for other names.
uint64_t emulated_cuda_count(const char* function);

}  // extern "C"
#pragma GCC visibility pop
