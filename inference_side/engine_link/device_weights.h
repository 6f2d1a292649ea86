// DeviceWeights: a rank's weights in the memory of a GPU. The GPU alone copies buckets from the IPC
// buffers of a sidecar and sums what it reads; no byte passes through the host. They are copied to
// the engine's own destinations, or, for an engine that takes whole tensors or borrows them, into
// memory of the library (layer_memory.h). A destination of another dtype gets converted elements.
//
// The engine's memory may be freed or mapped anew between two loads, which no pointer shows. So it
// is checked again before each load and each digest, and a kernel never begins with an address that
// is none.
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
#include "inference_side/engine_link/device_patch.h"
#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/layer_memory.h"
#include "inference_side/engine_link/patched_sums.h"
#include "inference_side/engine_link/prepared_version.h"
#include "shared/base/digest.h"
#include "shared/base/unique_fd.h"
#include "shared/control/messages.h"
#include "shared/device/device.h"

namespace wsync::engine {

class DeviceWeights {
 public:
  // kPieces: checks the tensors' destinations, as claim() does. `device` and `description` are
  // borrowed and must outlive the result.
  [[nodiscard]] static Result<std::unique_ptr<DeviceWeights>> create(
      device::Device& device, const EngineDescription& description);

  // kPieces: checks each destination again, as claim() does.
  [[nodiscard]] Result<> check();

  // ---- the memory of a load ----

  // Before a load changes anything. kPieces: checks that each destination is memory of this GPU and
  // inside one allocation; errors of Device::borrow, with the name of the tensor. Otherwise
  // allocates the memory in which the load puts tensors together, beside that of a load which has
  // not ended, unless it can be used again; errors as LayerMemory::allocate().
  [[nodiscard]] Result<> claim(const EngineLayout& layout);
  // What was claimed is not used after all.
  void give_up_claim() noexcept { claimed_.reset(); }
  // A load begins in the memory that was claimed. The memory of the load before is given up.
  [[nodiscard]] Result<> begin(const EngineLayout& layout);
  // Nobody reads the tensors of the load any more: frees the memory in which they were.
  void end() noexcept;
  // Whether a load has left tensors in memory of the library.
  [[nodiscard]] bool has_layers() const noexcept { return layers_ != nullptr; }
  // The engine gives its memory away: nothing refers to it any more, and what the library itself
  // has on the GPU is freed, which waits for the kernels that run there. claim() and digests() make
  // it anew.
  void release() noexcept;
  // Where the load has put `bytes` bytes of a tensor. These are addresses of the GPU. Between
  // begin() and end().
  [[nodiscard]] std::span<std::byte> part(std::uint32_t tensor, std::uint64_t bytes) const;

  // Copies what the rank needs of the bucket in `buffer`. When the copy is complete, it calls
  // on_group with the sums of what was read. Errors as BucketTaker::take(). Between begin() and
  // end().
  [[nodiscard]] Result<> take(const device::Memory& buffer, const BucketCopy& copy);
  // kPieces: the sum of the rank's part of a tensor as it is in its destination, as that of its
  // groups (held_sum() of same_memory.h). Errors as BucketTaker::take().
  [[nodiscard]] Result<SplitSum> held_sum(std::uint32_t tensor, const reload::LoadTensor& loaded,
                                          TimePoint deadline);
  // kPieces: allocates what patches need (device_patch.h), unless it is there; it stays until
  // release(). Errors as DevicePatch::create().
  [[nodiscard]] Result<> claim_patch();
  // kPieces: writes the blocks of a patch into the tensors. Errors as DevicePatch::apply(), and
  // kInvalidInput for a tensor that was not checked for this load; the stream of a patch that has
  // failed is destroyed. Between begin() and end(), after claim_patch().
  [[nodiscard]] Result<PatchedSums> patch(const PatchTargets& targets, ThreadPool* helpers,
                                          TimePoint deadline);
  // kPieces: digests of the tensors from `first` on, in order: of at least one tensor, and of
  // further ones while all have at most kDigestBatchBytes together. A converted tensor comes alone:
  // the host reads and converts it back. Returns kDeadline if the device does not complete them
  // within kDigestDeadline; otherwise errors as claim() and held_digest().
  [[nodiscard]] Result<std::vector<Digest>> digests(std::uint32_t first);
  static constexpr std::uint64_t kDigestBatchBytes = std::uint64_t{256} << 20U;
  static constexpr std::chrono::seconds kDigestDeadline{10};

  [[nodiscard]] device::Device& device() const noexcept { return device_; }

 private:
  DeviceWeights(device::Device& device, const EngineDescription& description)
      : device_(device), description_(description) {}
  struct Batch {
    std::vector<device::Piece> pieces;
    std::vector<SplitSum> sums;
  };
  [[nodiscard]] Result<> open_stream();
  // Executes the batch on the stream, and waits until it is complete.
  [[nodiscard]] Result<> run(Batch& batch, TimePoint deadline);
  [[nodiscard]] Result<> enqueue(Batch& batch);
  [[nodiscard]] Result<Digest> converted_digest(std::uint32_t tensor);
  // Checks the destination of a tensor, and borrows it.
  [[nodiscard]] Result<> borrow(std::size_t tensor);
  [[nodiscard]] bool takes_pieces() const noexcept {
    return description_.take == control::TakeMode::kPieces;
  }
  [[nodiscard]] device::Region region(std::uint32_t tensor, std::uint64_t bytes) const;

  device::Device& device_;
  const EngineDescription& description_;
  // kPieces; null: a tensor without a byte, or not checked since release().
  std::vector<std::unique_ptr<device::Memory>> tensors_;
  std::unique_ptr<LayerMemory> layers_;   // other modes: of the load
  std::unique_ptr<LayerMemory> claimed_;  // for the next one
  std::unique_ptr<device::Event> event_;
  std::unique_ptr<DevicePatch> patch_;      // null: no patch has come yet
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
