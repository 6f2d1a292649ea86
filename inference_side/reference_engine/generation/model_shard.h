// ModelShard: the forward pass of one rank of a tensor-parallel replica (Megatron-LM, arXiv
// 1909.08053). Heads, the inner width of experts and the vocabulary are divided among the ranks.
// Norms and the router are whole on each rank. Every step reads the weights as bfloat16 from where
// the engine holds them; arithmetic is float32. Keys and values of earlier tokens are kept in
// blocks.
//
// Every rank of a replica computes the same batches in the same order. Sums over ranks are formed
// in rank order, so all ranks have the same hidden states. Each rank computes the router's logits
// itself. The results have the same bits on every processor (moe/product.h), so all ranks choose
// the same experts.
//
// The result of a token does not depend on the other contents of its batch or on how its prompt was
// divided. On the same ranks the logits have the same bits, for a sequence alone or beside others,
// for a whole prompt or token by token, and on all kinds of processors with the same C library
// (moe/arithmetic.h).
//
// Thread: confined to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inference_side/reference_engine/generation/batch.h"
#include "shared/moe/model_spec.h"
#include "shared/process_group/collectives.h"
#include "shared/weights/manifest.h"

namespace wsync::engine::generation {

inline constexpr std::uint32_t kMaxBlocks = 1U << 20U;
inline constexpr std::uint32_t kBlockTokensMax = 4096;
inline constexpr std::uint32_t kStepTokensMax = 65'536;

struct ShardOptions {
  moe::ModelSpec spec;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t blocks = 0;             // number of blocks of keys and values; 1 to kMaxBlocks
  std::uint32_t block_tokens = 16;      // 1 to kBlockTokensMax
  std::uint32_t max_step_tokens = 512;  // 1 to kStepTokensMax
};

// Access to the weights that the engine holds.
class WeightView {
 public:
  virtual ~WeightView() = default;
  // This rank's part of tensor `t` of the manifest, as bytes of its dtype; valid during the step.
  // The part is an equal share of dimension 0 for q_proj, k_proj, v_proj, gate_proj, up_proj,
  // embed_tokens and lm_head, an equal share of dimension 1 for o_proj and down_proj, and the whole
  // tensor otherwise.
  [[nodiscard]] virtual std::span<const std::byte> tensor(std::uint32_t t) const = 0;
  // Called before and after the tensors of a manifest layer are read. The view compares the version
  // of the layer with that of the step.
  virtual void begin_layer(std::uint32_t layer) = 0;
  virtual void end_layer(std::uint32_t layer) = 0;
};

class ModelShard {
 public:
  // `manifest` describes the whole model. Returns kInvalidInput, with the name of the item, for: an
  // option out of range; a model parameter that is missing, has another shape or is not bfloat16; a
  // tensor that is not a parameter of the model; heads, key/value heads, expert width or vocabulary
  // that cannot be divided equally among the ranks. Returns kResourceExhausted if there is no
  // memory for the blocks.
  [[nodiscard]] static Result<std::unique_ptr<ModelShard>> create(const ShardOptions& options,
                                                                  const Manifest& manifest);
  virtual ~ModelShard() = default;

  // Computes the batch, which must pass check_batch(), and stores the keys and values of its tokens
  // in their blocks. A slice may read what another slice of the batch writes. Returns the logits of
  // the slices that want them, [Batch::logits(), vocabulary], on member 0 of `team`, and an empty
  // vector on the others. `team` contains the ranks of the replica in rank order. An empty batch
  // reads the version of every layer and computes nothing. Errors as ProcessGroup::exchange(); the
  // keys and values of the step are then invalid.
  [[nodiscard]] virtual Result<std::vector<float>> forward(const Batch& batch, WeightView& weights,
                                                           const collective::Team& team,
                                                           TimePoint deadline) = 0;
  [[nodiscard]] virtual BatchLimits limits() const = 0;
  // Size of keys and values on this rank, in bytes.
  [[nodiscard]] virtual std::uint64_t cache_bytes() const = 0;

 protected:
  ModelShard() = default;
};

// Size of keys and values of one block on one rank, in bytes. Ignores the number of blocks. Returns
// kInvalidInput if the model cannot be divided equally among the ranks.
[[nodiscard]] Result<std::uint64_t> block_bytes(const ShardOptions& options,
                                                const Manifest& manifest);

}  // namespace wsync::engine::generation
