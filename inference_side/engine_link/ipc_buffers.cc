#include "inference_side/engine_link/ipc_buffers.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync::engine {
namespace {

// A handle of a replaced sidecar is stale: the memory that it names may still exist, but nobody
// fills it any more.
Result<> check_generation(std::span<const control::BufferHandle> handles,
                          std::uint64_t generation) {
  for (std::size_t i = 0; i < handles.size(); ++i)
    if (handles[i].generation != generation)
      return fail(ErrorCode::kRefused,
                  fmt::format("IPC buffer {}: its handle is stale: it is of generation {:016x} of "
                              "the sidecar, and generation {:016x} welcomed this rank; restart the "
                              "sidecar",
                              i, handles[i].generation, generation));
  return {};
}

}  // namespace

// A sidecar knows from the hello where the weights are. This check is for a sidecar that ignores
// it.
Result<> IpcBuffers::check_device(const control::EngineWelcome& welcome) const {
  const bool on_gpu = welcome.device_kind == DeviceKind::kCuda;
  if (on_gpu && weights_ == nullptr)
    return fail(ErrorCode::kRefused,
                fmt::format("device {} of the sidecar is a GPU, this rank's weights are in host "
                            "memory: put them on that GPU (wsync engine --device cuda), or attach "
                            "to a sidecar with host devices",
                            device_));
  if (!on_gpu && weights_ != nullptr)
    return fail(ErrorCode::kRefused,
                fmt::format("device {} of the sidecar is a host device, this rank's weights are on "
                            "{}: set devices.kind: cuda for the sidecar, or keep them in host "
                            "memory (wsync engine --device host)",
                            device_, weights_->device().name()));
  if (welcome.device_kind == DeviceKind::kUnified) return {};
  if (welcome.buffer_bytes == 0 || welcome.buffer_bytes > limits::kBucketBytesMax)
    return fail(ErrorCode::kRefused,
                fmt::format("IPC buffers of {} bytes are announced, 1 to {} are allowed",
                            welcome.buffer_bytes, limits::kBucketBytesMax));
  return {};
}

Result<> IpcBuffers::map(const control::EngineWelcome& welcome, std::span<const UniqueFd> fds) {
  WSYNC_TRY(check_device(welcome));
  taker_.reset();  // those of an earlier sidecar, also if these cannot be mapped
  switch (welcome.device_kind) {
    case DeviceKind::kUnified:
      break;
    case DeviceKind::kSeparate:
      taker_ = WSYNC_TRY(HostTaker::map(fds, welcome.buffer_bytes));
      break;
    case DeviceKind::kCuda:
      if (welcome.buffers.empty()) break;  // each Load brings them
      WSYNC_TRY(check_generation(welcome.buffers, welcome.generation));
      taker_ =
          WSYNC_TRY(DeviceTaker::import(*weights_, welcome.buffers, fds, welcome.buffer_bytes));
      break;
  }
  kind_ = welcome.device_kind;
  generation_ = welcome.generation;
  bytes_ = welcome.buffer_bytes;
  of_load_ = false;
  return {};
}

Result<> IpcBuffers::map(const control::Load& load, std::span<const UniqueFd> fds) {
  if (kind_ != DeviceKind::kCuda) {
    if (load.buffers.empty()) return {};
    return fail(ErrorCode::kInvalidInput,
                "a load carried handles of GPU buffers, but the sidecar's device is not a GPU");
  }
  if (load.buffers.empty() && taker_ && !of_load_) return {};
  WSYNC_TRY(check_generation(load.buffers, generation_));
  taker_.reset();
  taker_ = WSYNC_TRY(DeviceTaker::import(*weights_, load.buffers, fds, bytes_));
  of_load_ = true;
  return {};
}

void IpcBuffers::end_load() noexcept {
  if (std::exchange(of_load_, false)) taker_.reset();
}

}  // namespace wsync::engine
