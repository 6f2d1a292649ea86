#include "shared/weights/example/model_shape.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/config/units.h"

namespace wsync::bench {
namespace {

// Sources: config.json of each model on Hugging Face (Qwen/Qwen3-30B-A3B, Qwen/Qwen3-235B-A22B,
// zai-org/GLM-4.5-Air, deepseek-ai/DeepSeek-V3.1, moonshotai/Kimi-K2-Instruct). Parameters: the
// `safetensors` entry of the same models in Hugging Face's API. Tensors and bytes of
// Qwen3-235B-A22B: `weight_map` and `total_size` of its model.safetensors.index.json. Tensors and
// bytes of Kimi-K2: a third party's sum over the headers of all 61 files. Parameters of Kimi-K2:
// the API's total of Kimi-K2-Base, 1026470731056, because the total of Kimi-K2-Instruct
// (1026408235864) excludes the scales.
constexpr std::array<ModelShape, 5> kShapes = {{
    {.name = "Qwen3-30B-A3B",
     .architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .hidden = 2048,
     .vocabulary = 151936,
     .layers = 48,
     .heads = 32,
     .key_value_heads = 4,
     .head_dim = 128,
     .intermediate = 6144,
     .experts = 128,
     .expert_intermediate = 768,
     .experts_for_token = 8,
     .head_norms = true,
     .published = {.parameters = 30'532'122'624}},
    {.name = "Qwen3-235B-A22B",
     .architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .hidden = 4096,
     .vocabulary = 151936,
     .layers = 94,
     .heads = 64,
     .key_value_heads = 4,
     .head_dim = 128,
     .intermediate = 12288,
     .experts = 128,
     .expert_intermediate = 1536,
     .experts_for_token = 8,
     .head_norms = true,
     .published = {.tensors = 36'945, .parameters = 235'093'634'560, .bytes = 470'187'269'120}},
    {.name = "GLM-4.5-Air",
     .architecture = "Glm4MoeForCausalLM",
     .model_type = "glm4_moe",
     .hidden = 4096,
     .vocabulary = 151552,
     .layers = 46,
     .dense_layers = 1,
     .mtp_layers = 1,
     .heads = 96,
     .key_value_heads = 8,
     .head_dim = 128,
     .intermediate = 10944,
     .experts = 128,
     .shared_experts = 1,
     .expert_intermediate = 1408,
     .experts_for_token = 8,
     .attention_bias = true,
     .router_bias = true,
     .published = {.parameters = 110'468'824'832}},
    {.name = "DeepSeek-V3.1",
     .architecture = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .attention = Attention::kLatent,
     .hidden = 7168,
     .vocabulary = 129280,
     .layers = 61,
     .dense_layers = 3,
     .mtp_layers = 1,
     .heads = 128,
     .key_value_heads = 128,
     .query_rank = 1536,
     .latent_rank = 512,
     .plain_dim = 128,
     .position_dim = 64,
     .value_dim = 128,
     .intermediate = 18432,
     .experts = 256,
     .shared_experts = 1,
     .expert_intermediate = 2048,
     .experts_for_token = 8,
     .router_bias = true,
     .fp8 = true,
     .published = {.parameters = 684'531'386'000}},
    {.name = "Kimi-K2",
     .architecture = "DeepseekV3ForCausalLM",
     .model_type = "kimi_k2",
     .attention = Attention::kLatent,
     .hidden = 7168,
     .vocabulary = 163840,
     .layers = 61,
     .dense_layers = 1,
     .heads = 64,
     .key_value_heads = 64,
     .query_rank = 1536,
     .latent_rank = 512,
     .plain_dim = 128,
     .position_dim = 64,
     .value_dim = 128,
     .intermediate = 18432,
     .experts = 384,
     .shared_experts = 1,
     .expert_intermediate = 2048,
     .experts_for_token = 8,
     .position_buffer = 56,
     .router_bias = true,
     .fp8 = true,
     .published = {.tensors = 139'644,
                   .parameters = 1'026'470'731'056,
                   .bytes = 1'029'173'256'720}},
}};

std::string lower(std::string_view text) {
  std::string made(text);
  std::ranges::transform(made, made.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return made;
}

constexpr std::uint64_t blocks_of(std::uint64_t size) {
  return (size + kScaleBlock - 1) / kScaleBlock;
}

// Builds the list of a model's tensors, in the order of the model.
class TensorList {
 public:
  explicit TensorList(const ModelShape& shape) : shape_(shape) {}

  std::vector<TensorInfo> made() && {
    const ModelShape& s = shape_;
    add("model.embed_tokens.weight", {s.vocabulary, s.hidden});
    for (std::uint64_t layer = 0; layer < s.layers + s.mtp_layers; ++layer) add_layer(layer);
    add("model.norm.weight", {s.hidden});
    add("lm_head.weight", {s.vocabulary, s.hidden});
    return std::move(out_);
  }

 private:
  void add(std::string name, std::vector<std::uint64_t> dims, DType dtype = DType::kBF16) {
    out_.push_back({.name = std::move(name), .dtype = dtype, .shape = std::move(dims)});
  }
  void linear(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    add(name + ".weight", {rows, columns}, shape_.fp8 ? DType::kF8E4M3 : DType::kBF16);
    if (shape_.fp8)
      add(name + ".weight_scale_inv", {blocks_of(rows), blocks_of(columns)}, DType::kF32);
  }
  void gated(const std::string& prefix, std::uint64_t width) {
    linear(prefix + "gate_proj", width, shape_.hidden);
    linear(prefix + "up_proj", width, shape_.hidden);
    linear(prefix + "down_proj", shape_.hidden, width);
  }

  void add_layer(std::uint64_t layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    if (layer >= shape_.layers) add_prediction(prefix);
    add(prefix + "input_layernorm.weight", {shape_.hidden});
    if (shape_.attention == Attention::kLatent)
      add_latent(prefix + "self_attn.");
    else
      add_grouped(prefix + "self_attn.");
    add(prefix + "post_attention_layernorm.weight", {shape_.hidden});
    if (layer < shape_.dense_layers)
      gated(prefix + "mlp.", shape_.intermediate);
    else
      add_experts(prefix + "mlp.");
  }
  void add_grouped(const std::string& prefix) {
    const ModelShape& s = shape_;
    const std::uint64_t queries = s.heads * s.head_dim;
    const std::uint64_t keys = s.key_value_heads * s.head_dim;
    for (const auto& [name, rows] :
         {std::pair{"q_proj", queries}, {"k_proj", keys}, {"v_proj", keys}}) {
      linear(prefix + name, rows, s.hidden);
      if (s.attention_bias) add(prefix + name + ".bias", {rows});
    }
    linear(prefix + "o_proj", s.hidden, queries);
    if (!s.head_norms) return;
    add(prefix + "q_norm.weight", {s.head_dim});
    add(prefix + "k_norm.weight", {s.head_dim});
  }
  void add_latent(const std::string& prefix) {
    const ModelShape& s = shape_;
    linear(prefix + "q_a_proj", s.query_rank, s.hidden);
    add(prefix + "q_a_layernorm.weight", {s.query_rank});
    linear(prefix + "q_b_proj", s.heads * (s.plain_dim + s.position_dim), s.query_rank);
    linear(prefix + "kv_a_proj_with_mqa", s.latent_rank + s.position_dim, s.hidden);
    add(prefix + "kv_a_layernorm.weight", {s.latent_rank});
    linear(prefix + "kv_b_proj", s.heads * (s.plain_dim + s.value_dim), s.latent_rank);
    linear(prefix + "o_proj", s.hidden, s.heads * s.value_dim);
    if (s.position_buffer > 0) add(prefix + "rotary_emb.inv_freq", {s.position_buffer});
  }
  void add_experts(const std::string& prefix) {
    add(prefix + "gate.weight", {shape_.experts, shape_.hidden});
    if (shape_.router_bias)
      add(prefix + "gate.e_score_correction_bias", {shape_.experts}, DType::kF32);
    for (std::uint64_t e = 0; e < shape_.experts; ++e)
      gated(fmt::format("{}experts.{}.", prefix, e), shape_.expert_intermediate);
    if (shape_.shared_experts > 0)
      gated(prefix + "shared_experts.", shape_.shared_experts * shape_.expert_intermediate);
  }
  // A layer that predicts a further token has its own embeddings, head and norms.
  void add_prediction(const std::string& prefix) {
    const ModelShape& s = shape_;
    add(prefix + "embed_tokens.weight", {s.vocabulary, s.hidden});
    add(prefix + "enorm.weight", {s.hidden});
    add(prefix + "hnorm.weight", {s.hidden});
    add(prefix + "eh_proj.weight", {s.hidden, 2 * s.hidden});
    add(prefix + "shared_head.norm.weight", {s.hidden});
    add(prefix + "shared_head.head.weight", {s.vocabulary, s.hidden});
  }

  const ModelShape& shape_;
  std::vector<TensorInfo> out_;
};

}  // namespace

std::span<const ModelShape> model_shapes() noexcept { return kShapes; }

Result<ModelShape> find_model(std::string_view name) {
  const std::string wanted = lower(name);
  std::vector<std::string> names;
  for (const ModelShape& shape : kShapes) {
    names.push_back(lower(shape.name));
    if (names.back() == wanted) return shape;
  }
  const std::string nearest = config::nearest_name(wanted, names);
  std::string known;
  std::string hint;
  for (const ModelShape& shape : kShapes) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
    if (lower(shape.name) == nearest) hint = fmt::format("; did you mean {}?", shape.name);
  }
  return fail(ErrorCode::kInvalidInput,
              fmt::format("no model '{}': expected one of {}{}", name, known, hint));
}

std::vector<TensorInfo> tensors_of(const ModelShape& shape) { return TensorList(shape).made(); }

ShapeTotals totals_of(std::span<const TensorInfo> tensors) {
  ShapeTotals totals;
  for (const TensorInfo& tensor : tensors) {
    std::uint64_t elements = 1;
    for (const std::uint64_t dim : tensor.shape) elements *= dim;
    const std::uint64_t bytes = elements * dtype_bits(tensor.dtype) / 8;
    ++totals.tensors;
    totals.parameters += elements;
    if (tensor.name.ends_with("_scale_inv")) totals.scales += elements;
    totals.bytes += bytes;
    totals.largest_tensor_bytes = std::max(totals.largest_tensor_bytes, bytes);
  }
  return totals;
}

nlohmann::json config_json(const ModelShape& s) {
  const bool routed_names = s.model_type != "qwen3_moe";
  nlohmann::json made = {{"architectures", {s.architecture}},
                         {"attention_bias", s.attention_bias},
                         {"hidden_act", "silu"},
                         {"hidden_size", s.hidden},
                         {"intermediate_size", s.intermediate},
                         {"max_position_embeddings", 4096},
                         {"model_type", s.model_type},
                         {"moe_intermediate_size", s.expert_intermediate},
                         {"norm_topk_prob", true},
                         {"num_attention_heads", s.heads},
                         {routed_names ? "n_routed_experts" : "num_experts", s.experts},
                         {"num_experts_per_tok", std::min(s.experts_for_token, s.experts)},
                         {"num_hidden_layers", s.layers},
                         {"num_key_value_heads", s.key_value_heads},
                         {"rms_norm_eps", 1e-6},
                         {"rope_theta", 1000000.0},
                         {"tie_word_embeddings", false},
                         {"torch_dtype", "bfloat16"},
                         {"vocab_size", s.vocabulary}};
  if (routed_names) {
    made["n_shared_experts"] = s.shared_experts;
    made["first_k_dense_replace"] = s.dense_layers;
    made["num_nextn_predict_layers"] = s.mtp_layers;
  }
  if (s.attention == Attention::kLatent) {
    made["q_lora_rank"] = s.query_rank;
    made["kv_lora_rank"] = s.latent_rank;
    made["qk_nope_head_dim"] = s.plain_dim;
    made["qk_rope_head_dim"] = s.position_dim;
    made["v_head_dim"] = s.value_dim;
  } else {
    made["head_dim"] = s.head_dim;
  }
  if (s.fp8)
    made["quantization_config"] = {{"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"quant_method", "fp8"},
                                   {"weight_block_size", {kScaleBlock, kScaleBlock}}};
  return made;
}

}  // namespace wsync::bench
