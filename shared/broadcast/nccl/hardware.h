// The operations on a GPU that a communicator needs besides NCCL: get the CUstream of a
// device::Stream, query its completion, identify the GPU, and abandon it. They are in one table, so
// that tests can replace it.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "shared/base/error.h"
#include "shared/broadcast/nccl/library.h"
#include "shared/broadcast/nccl/members.h"
#include "shared/device/device.h"

namespace wsync::collective::nccl {

// The GPU of a stream. It stays usable after the stream is destroyed. Thread: any.
struct Gpu {
  // Makes the GPU current on the calling thread.
  std::function<void()> enter;
  // Returns true if the GPU does not complete its work. Any NCCL call that frees something would
  // wait for that work without end, so nothing is freed there any more.
  std::function<bool()> abandoned;
  // Abandons the GPU, with the reason. This process no longer uses it or frees anything on it.
  std::function<void(const std::string& why)> abandon;
};

struct Hardware {
  // Returns the CUstream; kInvalidInput for a stream of another backend. Valid while the stream
  // exists.
  std::function<Result<void*>(device::Stream&)> native;
  // Returns true if all work submitted to the CUstream is complete, or the error of that work.
  // Thread: a thread of that stream.
  std::function<Result<bool>(void*)> idle;
  // Returns the UUID of the device's GPU; kInvalidInput for a device that is not a GPU.
  std::function<Result<std::string>(const device::Device&)> gpu;
  // Returns the stream's GPU.
  std::function<Gpu(device::Stream&)> of;
};
[[nodiscard]] Hardware cuda_hardware();

// The dependencies of a group. `nccl` must outlive the group and its communicators.
struct Site {
  const Nccl* nccl = nullptr;
  Hardware hardware;
  Member process;                 // describes this process; rank and GPU are not set
  bool ranks_share_gpus = false;  // library.h
  // Time limit for an orderly leave. After it, the rank aborts.
  std::chrono::nanoseconds leave_time = std::chrono::seconds(2);
  // Time limit for the call that frees the communicator. After it, the GPU is abandoned.
  std::chrono::nanoseconds end_time = std::chrono::seconds(5);
};
// Returns the site of this process. kRefused, with the reason, without NCCL or a driver.
[[nodiscard]] Result<Site> this_site();

}  // namespace wsync::collective::nccl
