// HeldModel: the tensors of one rank as the engine holds them, and for each layer a word that says
// of which version its bytes are. In memory of its own (copying engines), in host memory or on a
// GPU, or as views of what the link has mapped (adopting engines).
//
// Thread: the loading methods belong to one thread; read() to another. StepGate keeps a step and a
// load apart; the layer words are there to notice when it did not.
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

// What rank `rank` of `world_size` takes of each tensor of a model, in manifest order. By the parts
// of a name between dots:
//
//   q_proj k_proj v_proj qkv_proj gate_proj up_proj gate_up_proj embed_tokens lm_head
//                       an equal share of dimension 0
//   o_proj down_proj    an equal share of dimension 1
//   anything else       the whole tensor
//
// A tensor without that dimension, or whose shares would be unequal or cut through a byte, is taken
// whole by every rank.
[[nodiscard]] std::vector<control::EngineTensor> rank_tensors(const Manifest& manifest,
                                                              std::uint32_t rank,
                                                              std::uint32_t world_size);

class StepReader;

class HeldModel {
 public:
  // `mapped`: an adopting engine, which has no memory of its own and holds nothing at first.
  // Otherwise the memory is page-aligned (tensors smaller than a page: to 64 bytes) and zero; with
  // a `gpu`, which is borrowed and outlives the result, it is on that, and holds anything at first.
  // Errors of GpuHold::create there.
  [[nodiscard]] static Result<std::unique_ptr<HeldModel>> create(const Manifest& manifest,
                                                                 std::uint32_t rank,
                                                                 std::uint32_t world_size,
                                                                 bool mapped,
                                                                 device::Device* gpu = nullptr);

  [[nodiscard]] std::span<const control::EngineTensor> tensors() const noexcept {
    return descriptions_;
  }
  // The rank's part of a tensor in memory of its own, addresses on the GPU where it is there; empty
  // when mapped.
  [[nodiscard]] std::span<std::byte> memory(std::size_t tensor) const { return own_[tensor]; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }  // of the rank's parts
  // What it takes of the GPU; 0 in host memory.
  [[nodiscard]] std::uint64_t gpu_bytes() const noexcept { return gpu_ ? gpu_->bytes() : 0; }
  [[nodiscard]] std::uint32_t layer_count() const noexcept {
    return static_cast<std::uint32_t>(layers_.size());
  }

  // ---- the thread that loads ----

  // Fills the memory with the rank's parts of a checkpoint of the same layout, as version 0.0.
  [[nodiscard]] Result<> read_checkpoint(const CheckpointDirectory& checkpoint);
  // The bytes are about to change (never when mapped): no layer is of any version. What is written
  // after this is seen by no step that has not seen this.
  void begin_load();
  // A complete layer of `version` has come: every tensor of it that has bytes, or the process is
  // aborted. Mapped: kept beside the present one until commit(). Otherwise bytes that do not lie in
  // the memory yet are copied there.
  void take_layer(const Version& version, std::span<const LayerTensor> tensors);
  // Mapped: the layers that have come since the last commit take the place of the present ones. A
  // layer that has not come whole is not of `version` then: each step counts it as torn.
  void commit(const Version& version);
  // kPieces and kWhole only; the range is inside the rank's part. Errors of the GPU.
  [[nodiscard]] Result<> copy_out(std::size_t tensor, std::uint64_t offset,
                                  std::span<std::byte> out) const;

  // ---- the thread that serves ----

  // One forward step of `version`: reads bytes of every tensor in every layer, other ones in each
  // step. `saw` gets one sentence when a layer was not of that version before and after. The same
  // bytes give the same reading wherever they are. Errors of the GPU.
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
  std::vector<std::uint32_t> layer_of_;  // of each tensor
  std::vector<Layer> layers_;
  std::vector<std::uint64_t> part_bytes_;
  std::uint64_t bytes_ = 0;
  bool mapped_ = false;
  PrivateMemory memory_;
  std::unique_ptr<GpuHold> gpu_;  // null: in host memory
  std::vector<std::span<std::byte>> own_;
  std::vector<std::span<const std::byte>> held_;  // what a step reads; empty on a GPU
  std::vector<std::span<const std::byte>> next_;  // mapped: came for next_version_, not committed
  Version next_version_;
  mutable std::mutex mutex_;
  mutable std::vector<Version> names_{Version{}};  // under mutex_; a word is an index
};

// What one forward step of `version` reads, layer by layer. `model` is borrowed.
class StepReader final : public generation::WeightView {
 public:
  StepReader(const HeldModel& model, const Version& version);
  // Only between the begin and the end of its layer; anything else aborts the process.
  [[nodiscard]] std::span<const std::byte> tensor(std::uint32_t t) const override;
  void begin_layer(std::uint32_t layer) override;
  void end_layer(std::uint32_t layer) override;

  // The step has read all that it will: a layer that was not compared counts as torn, for nobody
  // knows of which version it was. Asked for what follows after this.
  void finish();
  // Some layer was not of the version before and after it was read.
  [[nodiscard]] bool torn() const noexcept { return !saw_.empty(); }
  // The first of them, one sentence.
  [[nodiscard]] const std::string& saw() const noexcept { return saw_; }
  // Layers whose version was compared; one that is read twice counts once.
  [[nodiscard]] std::uint32_t layers() const noexcept { return layers_; }

 private:
  const HeldModel& model_;
  Version version_;
  std::uint64_t expected_;
  std::uint64_t before_ = 0;
  std::optional<std::uint32_t> open_;  // the layer that has begun
  std::vector<bool> compared_;         // of each layer
  std::uint32_t layers_ = 0;
  std::string saw_;
};

}  // namespace wsync::engine::reference
