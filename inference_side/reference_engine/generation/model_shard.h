// ModelShard: the forward of one rank of a tensor-parallel replica (Megatron-LM, arXiv 1909.08053):
// heads, the inner width of experts and the vocabulary are shared among the ranks, norms and the
// router are whole in each. Weights are read as bfloat16 where the engine holds them, in every
// step; arithmetic is float32. Keys and values of earlier tokens are kept in blocks.
//
// Every rank of a replica computes the same batches in the same order; sums over ranks are taken in
// rank order, so all ranks see the same hidden states. Each of them computes the router's logits by
// itself, to the same bits on every processor (moe/product.h), and so chooses the same experts.
//
// What a token gives does not depend on what else is in its batch, nor on how its prompt was cut:
// on the same ranks the logits have the same bits, alone or among others, as a prompt or token by
// token, on processors of any kind with one C library (moe/arithmetic.h).
//
// Thread: one at a time.
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
  std::uint32_t blocks = 0;             // of keys and values; 1 to kMaxBlocks
  std::uint32_t block_tokens = 16;      // 1 to kBlockTokensMax
  std::uint32_t max_step_tokens = 512;  // 1 to kStepTokensMax
};

// What the forward asks of the engine that holds the weights.
class WeightView {
 public:
  virtual ~WeightView() = default;
  // This rank's part of tensor `t` of the manifest, as bytes of its dtype; valid during the step.
  // Equal shares of dimension 0 of q_proj, k_proj, v_proj, gate_proj, up_proj, embed_tokens and
  // lm_head, of dimension 1 of o_proj and down_proj; the others whole.
  [[nodiscard]] virtual std::span<const std::byte> tensor(std::uint32_t t) const = 0;
  // Called before and after the tensors of a layer of the manifest are read: the view compares the
  // layer's version with that of the step.
  virtual void begin_layer(std::uint32_t layer) = 0;
  virtual void end_layer(std::uint32_t layer) = 0;
};

class ModelShard {
 public:
  // `manifest` is the whole model's. kInvalidInput, naming it: an option out of its range; a
  // parameter of the architecture that is missing, has another shape or is not bfloat16, and a
  // tensor that is none of its parameters; heads, key/value heads, expert width or vocabulary that
  // the ranks cannot share equally. kResourceExhausted: no memory for the blocks.
  [[nodiscard]] static Result<std::unique_ptr<ModelShard>> create(const ShardOptions& options,
                                                                  const Manifest& manifest);
  virtual ~ModelShard() = default;

  // Computes the batch, which is inside the limits (check_batch()); keys and values of its tokens
  // go to their blocks. A slice may read what another one of the batch writes. Returns the logits
  // of the slices that want them, [Batch::logits(), vocabulary], on member 0 of `team`; on the
  // others nothing. `team` has the ranks of the replica, in their order. An empty batch reads every
  // layer's version and computes nothing. Errors as ProcessGroup::exchange(); the step's keys and
  // values are then of no use.
  [[nodiscard]] virtual Result<std::vector<float>> forward(const Batch& batch, WeightView& weights,
                                                           const collective::Team& team,
                                                           TimePoint deadline) = 0;
  [[nodiscard]] virtual BatchLimits limits() const = 0;
  // Of keys and values, on this rank.
  [[nodiscard]] virtual std::uint64_t cache_bytes() const = 0;

 protected:
  ModelShard() = default;
};

// Of keys and values of one block on one rank; the blocks' number is not looked at. kInvalidInput
// when the ranks cannot share the model equally.
[[nodiscard]] Result<std::uint64_t> block_bytes(const ShardOptions& options);

}  // namespace wsync::engine::generation
