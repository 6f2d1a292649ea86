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

// Reads config.json as transformers 4 or 5 writes it: the number of experts is `num_experts` or
// `num_local_experts`, and the base of the rotary embedding is `rope_theta` or is in
// `rope_parameters`. `where` names the file in errors. kInvalidInput for another architecture, a
// missing or invalid key, two keys that contradict each other, or an unsupported feature (attention
// bias, dense layers, rope scaling, another activation). Unsupported features are errors because
// ignoring them would change the logits.
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
// How a checkpoint has the experts of a layer. config.json does not say it.
enum class ExpertForm : std::uint8_t {
  kSeparate,  // three matrices of each expert: gate, up, down
  // As transformers 5 has them in memory, and saves them with save_original_format=False. All
  // experts are in two tensors: gate_up_proj [experts, 2 * expert_hidden, hidden], the rows of gate
  // before those of up, and down_proj [experts, hidden, expert_hidden].
  kFused,
};
// Parameters of one decoder layer: norms, attention, router, then experts by number (gate, up,
// down), or gate_up_proj and down_proj.
[[nodiscard]] std::vector<Parameter> layer_parameters(const ModelSpec& spec, std::uint32_t layer,
                                                      ExpertForm form = ExpertForm::kSeparate);
// All parameters: embeddings first, head last.
[[nodiscard]] std::vector<Parameter> all_parameters(const ModelSpec& spec,
                                                    ExpertForm form = ExpertForm::kSeparate);

}  // namespace wsync::moe
