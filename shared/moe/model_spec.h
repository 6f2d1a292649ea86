// The reference model: the Qwen3-MoE architecture (Qwen3 technical report, arXiv 2505.09388) as
// Hugging Face transformers implements it, so that results can be checked independently. Defines
// its sizes, its config.json and its parameters. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::moe {

struct ModelSpec {
  std::uint32_t vocabulary = 256;
  std::uint32_t hidden = 64;
  std::uint32_t layers = 2;
  std::uint32_t heads = 4;            // query heads
  std::uint32_t key_value_heads = 2;  // grouped-query attention; divides `heads`
  std::uint32_t head_dim = 16;        // must be even
  std::uint32_t experts = 8;
  std::uint32_t experts_per_token = 2;
  std::uint32_t expert_hidden = 32;  // moe_intermediate_size
  std::uint32_t max_positions = 2048;
  double rms_norm_epsilon = 1e-6;
  double rope_theta = 10'000;
  bool normalise_top_k = true;  // normalise the weights of the chosen experts to sum 1
  bool tied_embeddings = false;
  std::optional<std::uint32_t> end_token;  // eos_token_id: ends a generated text
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};
// kInvalidInput names the size that is not possible.
[[nodiscard]] Result<> check_spec(const ModelSpec& spec);

// Reads config.json. `where` names it in errors. kInvalidInput for another architecture, a missing
// or invalid key, or an unsupported feature (attention bias, dense layers, rope scaling, another
// activation). Unsupported features are errors because ignoring them would change the logits.
[[nodiscard]] Result<ModelSpec> read_config(std::string_view json, std::string_view where);
[[nodiscard]] std::string write_config(const ModelSpec& spec);

inline constexpr std::uint64_t kModelConfigBytes = 1ULL << 20U;  // largest config.json
// Reads config.json of a directory. Errors: kNotFound; kInvalidInput as read_config(), and if the
// file is longer than kModelConfigBytes.
[[nodiscard]] Result<ModelSpec> load_spec(const std::string& directory);

struct Parameter {
  std::string name;  // name in Hugging Face checkpoints
  std::vector<std::uint64_t> shape;
  [[nodiscard]] std::uint64_t elements() const noexcept;
};
// Parameters outside of the layers. A model with tied embeddings has no separate head.
inline constexpr const char* kEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kFinalNorm = "model.norm.weight";
inline constexpr const char* kHead = "lm_head.weight";
[[nodiscard]] Parameter embedding_of(const ModelSpec& spec);
[[nodiscard]] Parameter head_of(const ModelSpec& spec);
[[nodiscard]] Parameter final_norm_of(const ModelSpec& spec);
// Parameters of one decoder layer: norms, attention, router, then experts by number (gate, up,
// down).
[[nodiscard]] std::vector<Parameter> layer_parameters(const ModelSpec& spec, std::uint32_t layer);
// All parameters: embeddings first, head last.
[[nodiscard]] std::vector<Parameter> all_parameters(const ModelSpec& spec);

}  // namespace wsync::moe
