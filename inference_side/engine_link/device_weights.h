// DeviceWeights: a rank's weights in the memory of a GPU. The GPU alone copies buckets from the IPC
// buffers of a sidecar and sums what it reads; no byte passes through the host.
//
// Thread: confined to the thread that serves the link. When a function returns, the work that it
// has enqueued is complete or its stream is destroyed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inference_side/engine_link/bucket_taker.h"
#include "inference_side/engine_link/engine.h"
#include "shared/base/digest.h"
#include "shared/base/unique_fd.h"
#include "shared/control/messages.h"
#include "shared/device/device.h"

namespace wsync::engine {

class DeviceWeights {
 public:
  // Borrows the tensors' destinations from `device`, which must outlive the result. Errors of
  // Device::borrow, with the name of the tensor.
  [[nodiscard]] static Result<std::unique_ptr<DeviceWeights>> create(
      device::Device& device, std::span<const RankTensor> tensors);

  // Copies what the rank needs of the bucket in `buffer`. When the copy is complete, it calls
  // on_group with the sums of what was read. Errors as BucketTaker::take().
  [[nodiscard]] Result<> take(const device::Memory& buffer, const BucketCopy& copy);
  // Digests of the tensors from `first` on, in order: of at least one tensor, and of further
  // ones while all have at most kDigestBatchBytes together. Returns kDeadline if the device does
  // not complete them within kDigestDeadline.
  [[nodiscard]] Result<std::vector<Digest>> digests(std::uint32_t first);
  static constexpr std::uint64_t kDigestBatchBytes = std::uint64_t{256} << 20U;
  static constexpr std::chrono::seconds kDigestDeadline{10};

  [[nodiscard]] device::Device& device() const noexcept { return device_; }

 private:
  explicit DeviceWeights(device::Device& device) : device_(device) {}
  struct Batch {
    std::vector<device::Piece> pieces;
    std::vector<SplitSum> sums;
  };
  // Executes the batch on the stream, and waits until it is complete.
  [[nodiscard]] Result<> run(Batch& batch, TimePoint deadline);
  [[nodiscard]] Result<> enqueue(Batch& batch);

  device::Device& device_;
  std::vector<std::unique_ptr<device::Memory>> tensors_;  // null: a tensor without a byte
  std::vector<std::uint64_t> seeds_;                      // of their names
  std::unique_ptr<device::Event> event_;
  std::unique_ptr<device::Stream> stream_;  // null: not created yet, or destroyed after a failure
};

// IPC buffers of a sidecar on the same GPU. They are mapped while this object exists.
class DeviceTaker final : public BucketTaker {
 public:
  // Imports two handles of buffers of `bytes` each, with a descriptor for each. `weights` is
  // borrowed and must outlive the result; `fds` are borrowed until this returns. Returns kRefused
  // for another number of handles or descriptors; otherwise the errors of Device::import_memory,
  // with the buffer.
  [[nodiscard]] static Result<std::unique_ptr<BucketTaker>> import(
      DeviceWeights& weights, std::span<const control::BufferHandle> handles,
      std::span<const UniqueFd> fds, std::uint64_t bytes);

  [[nodiscard]] std::uint32_t slots() const noexcept override {
    return static_cast<std::uint32_t>(buffers_.size());
  }
  [[nodiscard]] std::uint64_t slot_bytes(std::uint32_t slot) const noexcept override {
    return buffers_[slot]->bytes();
  }
  [[nodiscard]] Result<> take(std::uint32_t slot, const BucketCopy& copy) override {
    return weights_.take(*buffers_[slot], copy);
  }

 private:
  explicit DeviceTaker(DeviceWeights& weights) : weights_(weights) {}
  DeviceWeights& weights_;
  std::vector<std::unique_ptr<device::Memory>> buffers_;
};

}  // namespace wsync::engine
