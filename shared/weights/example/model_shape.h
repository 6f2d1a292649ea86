// Published models by name: the tensors of their checkpoints, from their published configurations.
// Nothing is downloaded: what a tensor list needs is in the table of model_shape.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::bench {

// Side of the square blocks that have one scale each in FP8 checkpoints.
inline constexpr std::uint64_t kScaleBlock = 128;

enum class Attention : std::uint8_t {
  kGrouped,  // query heads share key-value heads (Qwen3-MoE, GLM-4.5)
  kLatent,   // multi-head latent attention (DeepSeek-V3, Kimi-K2)
};

// What others have published of the checkpoint; 0 where nothing exact is known.
struct PublishedTotals {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;  // every element of every tensor, scales included
  std::uint64_t bytes = 0;       // of all tensors, without the files' headers
};

// Sizes as in the model's config.json; names of fields where that has another one in brackets.
struct ModelShape {
  std::string_view name;          // "Qwen3-30B-A3B"
  std::string_view architecture;  // [architectures]
  std::string_view model_type;
  Attention attention = Attention::kGrouped;
  std::uint64_t hidden = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t layers = 0;        // without those that predict further tokens
  std::uint64_t dense_layers = 0;  // the first ones, without experts [first_k_dense_replace]
  std::uint64_t mtp_layers = 0;    // that predict further tokens [num_nextn_predict_layers]
  std::uint64_t heads = 0;
  std::uint64_t key_value_heads = 0;
  std::uint64_t head_dim = 0;      // grouped attention
  std::uint64_t query_rank = 0;    // latent attention, and the four below [q_lora_rank]
  std::uint64_t latent_rank = 0;   // [kv_lora_rank]
  std::uint64_t plain_dim = 0;     // of a head, without a position [qk_nope_head_dim]
  std::uint64_t position_dim = 0;  // [qk_rope_head_dim]
  std::uint64_t value_dim = 0;     // [v_head_dim]
  std::uint64_t intermediate = 0;  // of layers without experts
  std::uint64_t experts = 0;       // of a layer, routed
  std::uint64_t shared_experts = 0;
  std::uint64_t expert_intermediate = 0;
  std::uint64_t experts_for_token = 0;
  std::uint64_t position_buffer = 0;  // elements of a layer's rotary_emb.inv_freq; 0: there is none
  bool head_norms = false;            // q_norm, k_norm
  bool attention_bias = false;        // of queries, keys and values
  bool router_bias = false;           // e_score_correction_bias, F32
  bool fp8 = false;                   // linear layers in F8_E4M3 with an F32 scale for each block
  PublishedTotals published;          // of the model as published; not of one that was scaled
};

// "Qwen3-30B-A3B", "Qwen3-235B-A22B", "GLM-4.5-Air", "DeepSeek-V3.1", "Kimi-K2".
[[nodiscard]] std::span<const ModelShape> model_shapes() noexcept;
// By name, upper and lower case alike. kInvalidInput names the models, and the nearest one.
[[nodiscard]] Result<ModelShape> find_model(std::string_view name);

// Every tensor of the checkpoint: names, dtypes and shapes as published, in the order of the model.
[[nodiscard]] std::vector<TensorInfo> tensors_of(const ModelShape& shape);

struct ShapeTotals {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t scales = 0;  // of those parameters
  std::uint64_t bytes = 0;
  std::uint64_t largest_tensor_bytes = 0;
};
[[nodiscard]] ShapeTotals totals_of(std::span<const TensorInfo> tensors);

inline constexpr std::uint64_t kScaledBytesMin = 4ULL << 20U;

// A smaller model with the same kinds of tensors, of `bytes` at most; a row of the vocabulary more
// would pass them:
//   1. one layer of each other kind (dense, predicting) is kept, and as many layers with experts as
//      fit beside embeddings and head, which keep the share of bytes that they have as published;
//   2. while fewer than four layers with experts would fit, experts (not below 8) and widths
//   (hidden
//      size; heads, or their sizes where there are four; ranks; sizes of dense layers and of
//      experts) are halved in turn;
//   3. the vocabulary takes what is left.
// A model that is not larger than `bytes` comes back as it is. kInvalidInput below
// kScaledBytesMin.
[[nodiscard]] Result<ModelShape> scaled(const ModelShape& shape, std::uint64_t bytes);

// What stands in config.json.
[[nodiscard]] nlohmann::json config_json(const ModelShape& shape);

}  // namespace wsync::bench
