// IpcBuffers: the device buffers of a sidecar that this rank copies buckets out of, as far as they
// are mapped. Host memory comes as two memfds with the welcome, and memory of a GPU as two handles
// with the welcome or with each Load. A sidecar of unified devices has none: there the rank maps
// whole versions.
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
  // `weights`: where the rank's weights are on a GPU; null: in host memory. Borrowed. `device`:
  // index of the sidecar's device, for sentences.
  IpcBuffers(DeviceWeights* weights, std::uint32_t device) : weights_(weights), device_(device) {}

  // Maps what came with a welcome, in place of anything before. kRefused when the sidecar's device
  // is not where the weights are, or a size or a handle is wrong; else the errors of
  // HostTaker::map() and DeviceTaker::import().
  [[nodiscard]] Result<> map(const control::EngineWelcome& welcome, std::span<const UniqueFd> fds);
  // Maps what came with a Load; keeps those of the welcome when none came. kInvalidInput for
  // handles where the sidecar's device is no GPU; else as above.
  [[nodiscard]] Result<> map(const control::Load& load);
  // Unmaps the buffers that came with the Load; those of the welcome stay.
  void end_load() noexcept;
  // Unmaps everything.
  void release() noexcept { taker_.reset(); }

  // How buckets are copied out of them; null without any.
  [[nodiscard]] BucketTaker* taker() noexcept { return taker_.get(); }
  // The sidecar's device is unified: versions come as arenas, and no buffer is needed.
  [[nodiscard]] bool needs_arenas() const noexcept { return kind_ == DeviceKind::kUnified; }

 private:
  [[nodiscard]] Result<> check_device(const control::EngineWelcome& welcome) const;

  DeviceWeights* weights_;
  std::uint32_t device_;
  DeviceKind kind_ = DeviceKind::kUnified;
  std::uint64_t generation_ = 0;  // of the sidecar that has sent the welcome
  std::uint64_t bytes_ = 0;       // of each buffer
  std::unique_ptr<BucketTaker> taker_;
  bool of_load_ = false;  // they came with the Load, and go with it
};

}  // namespace wsync::engine
