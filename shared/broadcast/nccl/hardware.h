// What a communicator asks of the GPU beside NCCL: the stream behind a device::Stream, whether its
// work is done, which GPU it is, and that it is not used again. One table, so that tests can put
// another in its place.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "shared/base/error.h"
#include "shared/broadcast/nccl/library.h"
#include "shared/broadcast/nccl/members.h"
#include "shared/device/device.h"

namespace wsync::collective::nccl {

// The GPU behind a stream; usable when the stream is gone. Any thread.
struct Gpu {
  // Makes it current on the thread that calls.
  std::function<void()> enter;
  // True when it does not end what it was given. NCCL would wait for it for ever in whatever frees
  // something, so nothing is freed there any more.
  std::function<bool()> abandoned;
  // So it is from now on, and why: this process does not use it again, nor free anything on it.
  std::function<void(const std::string& why)> abandon;
};

struct Hardware {
  // The CUstream; kInvalidInput for a stream of another backend. Valid while the stream is.
  std::function<Result<void*>(device::Stream&)> native;
  // True when all that was submitted to the CUstream is complete; its error otherwise. On a thread
  // of that stream.
  std::function<Result<bool>(void*)> idle;
  // UUID of the device's GPU; kInvalidInput for a device that is none.
  std::function<Result<std::string>(const device::Device&)> gpu;
  // The stream's GPU.
  std::function<Gpu(device::Stream&)> of;
};
[[nodiscard]] Hardware cuda_hardware();

// All that a group is made of. `nccl` outlives the group and its communicators.
struct Site {
  const Nccl* nccl = nullptr;
  Hardware hardware;
  Member process;  // of this process, without rank and GPU
  // How long a rank waits for NCCL when it leaves in good order; it aborts then.
  std::chrono::nanoseconds leave_time = std::chrono::seconds(2);
  // How long for the call that frees the communicator; its GPU is abandoned then.
  std::chrono::nanoseconds end_time = std::chrono::seconds(5);
};
// kRefused without NCCL or a driver, in words.
[[nodiscard]] Result<Site> this_site();

}  // namespace wsync::collective::nccl
