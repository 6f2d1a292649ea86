// IpcBuffers: the mapped device buffers of a sidecar, from which this rank copies buckets. Host
// buffers arrive as two memfds with the welcome. GPU buffers arrive as two handles and their two
// descriptors, with the welcome or with each Load. A sidecar with unified devices has no buffers;
// there the rank maps whole versions.
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "inference_side/engine_link/bucket_taker.h"
#include "inference_side/engine_link/device_weights.h"
#include "shared/base/unique_fd.h"
#include "shared/control/messages.h"

namespace wsync::engine {

class IpcBuffers {
 public:
  // `weights`: the rank's weights on a GPU; null if they are in host memory. Borrowed. `device`:
  // index of the sidecar's device, for messages.
  IpcBuffers(DeviceWeights* weights, std::uint32_t device) : weights_(weights), device_(device) {}

  // Maps the buffers of a welcome, in place of any earlier ones. Returns kRefused if the weights
  // are not on the sidecar's device, or if a size or a handle is wrong; otherwise the errors of
  // HostTaker::map() and DeviceTaker::import().
  [[nodiscard]] Result<> map(const control::EngineWelcome& welcome, std::span<const UniqueFd> fds);
  // Maps the buffers of a Load; keeps those of the welcome if the Load has none. Returns
  // kInvalidInput for handles if the sidecar's device is not a GPU; otherwise as above.
  [[nodiscard]] Result<> map(const control::Load& load, std::span<const UniqueFd> fds);
  // Unmaps the buffers of the Load. Those of the welcome stay mapped.
  void end_load() noexcept;
  // Unmaps everything.
  void release() noexcept { taker_.reset(); }

  // Copies buckets out of the buffers; nullptr if there are none.
  [[nodiscard]] BucketTaker* taker() noexcept { return taker_.get(); }
  // Whether the sidecar's device is unified: versions then come as arenas, and no buffer is needed.
  [[nodiscard]] bool needs_arenas() const noexcept { return kind_ == DeviceKind::kUnified; }

 private:
  [[nodiscard]] Result<> check_device(const control::EngineWelcome& welcome) const;

  DeviceWeights* weights_;
  std::uint32_t device_;
  DeviceKind kind_ = DeviceKind::kUnified;
  std::uint64_t generation_ = 0;  // of the sidecar that sent the welcome
  std::uint64_t bytes_ = 0;       // of each buffer
  std::unique_ptr<BucketTaker> taker_;
  bool of_load_ = false;  // they came with the Load and are unmapped at its end
};

}  // namespace wsync::engine
