// HeldModel: the tensors of one rank as the engine holds them. Each layer has an atomic word that
// names the version of its bytes. The tensors lie in memory of the model's own (copying engines),
// in host memory or on a GPU, or they are views of memory that the link has mapped (adopting
// engines).
//
// Thread: the loading methods belong to one thread, read() to another. StepGate keeps steps and
// loads apart; the layer words detect it if they ever overlap.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference_side/engine_link/engine.h"
#include "inference_side/reference_engine/generation/model_shard.h"
#include "inference_side/reference_engine/gpu_hold.h"
#include "inference_side/reference_engine/step_protocol.h"
#include "shared/base/private_memory.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/manifest.h"

namespace wsync::engine::reference {

// The part of each tensor of a model that rank `rank` of `world_size` holds, in manifest order. The
// dot-separated parts of the tensor name decide:
//
//   q_proj k_proj v_proj qkv_proj gate_proj up_proj gate_up_proj embed_tokens lm_head
//                       an equal share of dimension 0
//   o_proj down_proj    an equal share of dimension 1
//   anything else       the whole tensor
//
// Every rank holds the whole tensor if the tensor does not have that dimension, or if the shares
// would be unequal or would not end at byte boundaries.
[[nodiscard]] std::vector<control::EngineTensor> rank_tensors(const Manifest& manifest,
                                                              std::uint32_t rank,
                                                              std::uint32_t world_size);

class StepReader;

class HeldModel {
 public:
  // `mapped` creates the model of an adopting engine: it has no memory of its own and holds nothing
  // at first. Otherwise the model allocates page-aligned, zeroed memory (tensors smaller than a
  // page are aligned to 64 bytes). With a `gpu`, which is borrowed and outlives the result, the
  // memory is on that GPU and is not zeroed; errors are then those of GpuHold::create().
  [[nodiscard]] static Result<std::unique_ptr<HeldModel>> create(const Manifest& manifest,
                                                                 std::uint32_t rank,
                                                                 std::uint32_t world_size,
                                                                 bool mapped,
                                                                 device::Device* gpu = nullptr);

  [[nodiscard]] std::span<const control::EngineTensor> tensors() const noexcept {
    return descriptions_;
  }
  // The memory of the rank's part of a tensor. These are GPU addresses if the model is on a GPU.
  // Empty if mapped.
  [[nodiscard]] std::span<std::byte> memory(std::size_t tensor) const { return own_[tensor]; }
  // Total size of the rank's parts.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // GPU memory used, in bytes; 0 in host memory.
  [[nodiscard]] std::uint64_t gpu_bytes() const noexcept { return gpu_ ? gpu_->bytes() : 0; }
  [[nodiscard]] std::uint32_t layer_count() const noexcept {
    return static_cast<std::uint32_t>(layers_.size());
  }

  // ---- the thread that loads ----

  // Fills the memory with the rank's parts of a checkpoint of the same layout, as version 0.0.
  [[nodiscard]] Result<> read_checkpoint(const CheckpointDirectory& checkpoint);
  // Marks every layer as changing, because its bytes are about to change. Never called when mapped.
  // A step that does not see this mark does not see any byte written after it.
  void begin_load();
  // Accepts a complete layer of `version`. It must contain every non-empty tensor of the layer;
  // otherwise the process is aborted. Mapped: the layer is kept beside the current one until
  // commit(). Not mapped: bytes that are not yet in the model's memory are copied there. Errors of
  // the GPU; the layer then has no version.
  [[nodiscard]] Result<> take_layer(const Version& version, std::span<const LayerTensor> tensors);
  // Mapped: the layers received since the last commit replace the current ones. A layer that was
  // not received completely does not get the name `version`, so each step counts it as torn.
  void commit(const Version& version);
  // Copies bytes of the rank's part to the host. kPieces and kWhole only. The range must be inside
  // the rank's part. Errors of the GPU.
  [[nodiscard]] Result<> copy_out(std::size_t tensor, std::uint64_t offset,
                                  std::span<std::byte> out) const;

  // ---- the thread that serves ----

  // Performs the reads of one forward step of `version`: some bytes of every tensor in every layer,
  // different bytes in each step. `saw` receives one sentence if a layer did not have that version
  // both before and after its bytes were read. The result depends only on the bytes, not on the
  // kind of memory. Errors of the GPU.
  [[nodiscard]] Result<Reading> read(const Version& version, std::uint64_t step,
                                     std::string& saw) const;

 private:
  friend class StepReader;
  struct Layer {
    std::vector<std::uint32_t> tensors;
    mutable std::atomic<std::uint64_t> word{0};  // index into names_, or kChanging
  };
  HeldModel() = default;
  [[nodiscard]] Result<std::uint64_t> sample_gpu(const Layer& layer, std::uint64_t step,
                                                 std::uint64_t value) const;
  [[nodiscard]] std::uint64_t word_of(const Version& version) const;
  [[nodiscard]] std::string name_of(std::uint64_t word) const;
  static void set_changing(Layer& layer);

  std::vector<control::EngineTensor> descriptions_;
  std::vector<std::uint32_t> layer_of_;  // layer of each tensor
  std::vector<Layer> layers_;
  std::vector<std::uint64_t> part_bytes_;
  std::uint64_t bytes_ = 0;
  bool mapped_ = false;
  PrivateMemory memory_;
  std::unique_ptr<GpuHold> gpu_;  // null if in host memory
  std::vector<std::span<std::byte>> own_;
  std::vector<std::span<const std::byte>> held_;  // what steps read; empty on a GPU
  // Mapped: received for next_version_, not yet committed.
  std::vector<std::span<const std::byte>> next_;
  Version next_version_;
  mutable std::mutex mutex_;
  mutable std::vector<Version> names_{Version{}};  // guarded by mutex_; a layer's word is an index
};

// Gives one forward step of `version` its weights, layer by layer, and checks the version of each
// layer. `model` is borrowed.
class StepReader final : public generation::WeightView {
 public:
  StepReader(const HeldModel& model, const Version& version);
  // Bytes of a tensor. Call only between begin_layer() and end_layer() of its layer; any other call
  // aborts the process.
  [[nodiscard]] std::span<const std::byte> tensor(std::uint32_t t) const override;
  void begin_layer(std::uint32_t layer) override;
  void end_layer(std::uint32_t layer) override;

  // Ends the step's reads. A layer that was not compared counts as torn, because its version is
  // unknown. The methods below are valid only after this call.
  void finish();
  // Whether some layer did not have the step's version both before and after it was read.
  [[nodiscard]] bool torn() const noexcept { return !saw_.empty(); }
  // One sentence about the first such layer.
  [[nodiscard]] const std::string& saw() const noexcept { return saw_; }
  // Number of layers whose version was compared. A layer that is read twice counts once.
  [[nodiscard]] std::uint32_t layers() const noexcept { return layers_; }

 private:
  const HeldModel& model_;
  Version version_;
  std::uint64_t expected_;
  std::uint64_t before_ = 0;
  std::optional<std::uint32_t> open_;  // the layer being read
  std::vector<bool> compared_;         // by layer
  std::uint32_t layers_ = 0;
  std::string saw_;
};

}  // namespace wsync::engine::reference
