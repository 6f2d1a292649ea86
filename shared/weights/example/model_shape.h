// Published models by name: the tensors of their checkpoints, derived from their published
// configurations. Nothing is downloaded: the table in model_shape.cc has all values that a tensor
// list needs.
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

// Side length of the square blocks that have one scale each in FP8 checkpoints.
inline constexpr std::uint64_t kScaleBlock = 128;

enum class Attention : std::uint8_t {
  kGrouped,  // query heads share key-value heads (Qwen3-MoE, GLM-4.5)
  kLatent,   // multi-head latent attention (DeepSeek-V3, Kimi-K2)
};

// Published totals of the checkpoint; 0 if no exact value is known.
struct PublishedTotals {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;  // every element of every tensor, scales included
  std::uint64_t bytes = 0;       // of all tensors, without the files' headers
};

// Sizes as in the model's config.json. Brackets hold the name of the field there if it differs.
struct ModelShape {
  std::string_view name;          // "Qwen3-30B-A3B"
  std::string_view architecture;  // [architectures]
  std::string_view model_type;
  Attention attention = Attention::kGrouped;
  std::uint64_t hidden = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t layers = 0;        // without the layers that predict further tokens
  std::uint64_t dense_layers = 0;  // the first layers, without experts [first_k_dense_replace]
  std::uint64_t mtp_layers = 0;    // layers that predict further tokens [num_nextn_predict_layers]
  std::uint64_t heads = 0;
  std::uint64_t key_value_heads = 0;
  std::uint64_t head_dim = 0;      // grouped attention
  std::uint64_t query_rank = 0;    // latent attention, as are the next four [q_lora_rank]
  std::uint64_t latent_rank = 0;   // [kv_lora_rank]
  std::uint64_t plain_dim = 0;     // part of a head without position [qk_nope_head_dim]
  std::uint64_t position_dim = 0;  // [qk_rope_head_dim]
  std::uint64_t value_dim = 0;     // [v_head_dim]
  std::uint64_t intermediate = 0;  // of layers without experts
  std::uint64_t experts = 0;       // routed experts per layer
  std::uint64_t shared_experts = 0;
  std::uint64_t expert_intermediate = 0;
  std::uint64_t experts_for_token = 0;
  std::uint64_t position_buffer = 0;  // elements of a layer's rotary_emb.inv_freq; 0: none
  bool head_norms = false;            // q_norm, k_norm
  bool attention_bias = false;        // of queries, keys and values
  bool router_bias = false;           // e_score_correction_bias, F32
  bool fp8 = false;                   // linear layers in F8_E4M3 with an F32 scale per block
  PublishedTotals published;          // of the published model; not of a scaled one
};

// Returns "Qwen3-30B-A3B", "Qwen3-235B-A22B", "GLM-4.5-Air", "DeepSeek-V3.1" and "Kimi-K2".
[[nodiscard]] std::span<const ModelShape> model_shapes() noexcept;
// Finds a model by name, ignoring case. The sentence of kInvalidInput lists the models and suggests
// the nearest one.
[[nodiscard]] Result<ModelShape> find_model(std::string_view name);

// Returns all tensors of the checkpoint: names, dtypes and shapes as published, in the order of the
// model.
[[nodiscard]] std::vector<TensorInfo> tensors_of(const ModelShape& shape);

struct ShapeTotals {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t scales = 0;  // included in `parameters`
  std::uint64_t bytes = 0;
  std::uint64_t largest_tensor_bytes = 0;
};
[[nodiscard]] ShapeTotals totals_of(std::span<const TensorInfo> tensors);

inline constexpr std::uint64_t kScaledBytesMin = 4ULL << 20U;

// Returns a smaller model with the same kinds of tensors and at most `bytes`. One more row of the
// vocabulary would exceed `bytes`.
//   1. One layer of each other kind (dense, predicting) is kept. Layers with experts are kept as
//      far as they fit beside embeddings and head, which keep their published share of the bytes.
//   2. While fewer than four layers with experts would fit, the number of experts (minimum 8) and
//      the widths are halved in turn. The widths are the hidden size, the number of heads (the
//      sizes of the heads once there are four), the ranks, and the sizes of dense layers and of
//      experts.
//   3. The vocabulary uses the rest.
// A model that is not larger than `bytes` is returned unchanged. kInvalidInput below
// kScaledBytesMin.
[[nodiscard]] Result<ModelShape> scaled(const ModelShape& shape, std::uint64_t bytes);

// Returns the content of config.json.
[[nodiscard]] nlohmann::json config_json(const ModelShape& shape);

}  // namespace wsync::bench
