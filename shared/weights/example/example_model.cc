#include "shared/weights/example/example_model.h"

#include <algorithm>
#include <string>

#include "shared/base/format.h"
#include "shared/config/units.h"

namespace wsync::cli {
namespace {

constexpr std::uint64_t kElementBytes = 2;  // bf16
constexpr std::uint32_t kHiddenMin = 64;
constexpr std::uint32_t kExperts = 16;
constexpr std::uint32_t kHeadDimMax = 128;
constexpr std::uint64_t kLayersWanted = 8;  // at least, if the size allows it

TensorInfo bf16(std::string name, std::vector<std::uint64_t> shape) {
  return {.name = std::move(name), .dtype = DType::kBF16, .shape = std::move(shape)};
}

std::uint64_t elements(const std::vector<TensorInfo>& tensors) {
  std::uint64_t sum = 0;
  for (const TensorInfo& tensor : tensors) {
    std::uint64_t product = 1;
    for (const std::uint64_t dim : tensor.shape) product *= dim;
    sum += product;
  }
  return sum;
}

// Proportions of Qwen3-30B-A3B relative to the hidden size: queries 2x, keys and values 1/4x,
// experts 3/8x.
DemoModel of_hidden(std::uint32_t hidden) {
  DemoModel model;
  model.hidden = hidden;
  model.experts = kExperts;
  model.expert_intermediate = hidden * 3 / 8;
  model.head_dim = std::min(kHeadDimMax, hidden / 4);
  model.heads = 2 * hidden / model.head_dim;
  model.key_value_heads = std::max(1U, hidden / 4 / model.head_dim);
  return model;
}

void add_layer(const DemoModel& m, std::uint32_t layer, std::vector<TensorInfo>& out) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::uint64_t queries = std::uint64_t{m.heads} * m.head_dim;
  const std::uint64_t keys = std::uint64_t{m.key_value_heads} * m.head_dim;
  out.push_back(bf16(prefix + "input_layernorm.weight", {m.hidden}));
  out.push_back(bf16(prefix + "self_attn.q_proj.weight", {queries, m.hidden}));
  out.push_back(bf16(prefix + "self_attn.k_proj.weight", {keys, m.hidden}));
  out.push_back(bf16(prefix + "self_attn.v_proj.weight", {keys, m.hidden}));
  out.push_back(bf16(prefix + "self_attn.o_proj.weight", {m.hidden, queries}));
  out.push_back(bf16(prefix + "self_attn.q_norm.weight", {m.head_dim}));
  out.push_back(bf16(prefix + "self_attn.k_norm.weight", {m.head_dim}));
  out.push_back(bf16(prefix + "post_attention_layernorm.weight", {m.hidden}));
  out.push_back(bf16(prefix + "mlp.gate.weight", {m.experts, m.hidden}));
  for (std::uint32_t e = 0; e < m.experts; ++e) {
    const std::string expert = fmt::format("{}mlp.experts.{}.", prefix, e);
    out.push_back(bf16(expert + "gate_proj.weight", {m.expert_intermediate, m.hidden}));
    out.push_back(bf16(expert + "up_proj.weight", {m.expert_intermediate, m.hidden}));
    out.push_back(bf16(expert + "down_proj.weight", {m.hidden, m.expert_intermediate}));
  }
}

std::uint64_t layer_bytes(const DemoModel& model) {
  std::vector<TensorInfo> layer;
  add_layer(model, 0, layer);
  return elements(layer) * kElementBytes;
}

}  // namespace

Result<DemoModel> DemoModel::scaled_to(std::uint64_t bytes) {
  if (bytes < kDemoBytesMin || bytes > kDemoBytesMax)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("a demo checkpoint of {}: expected {} to {}", config::format_size(bytes),
                    config::format_size(kDemoBytesMin), config::format_size(kDemoBytesMax)));
  // Four fifths go to the layers. The rows of the embeddings and the head use up the rest.
  const std::uint64_t for_layers = bytes / 5 * 4;
  DemoModel model = of_hidden(kHiddenMin);
  while (for_layers / layer_bytes(of_hidden(2 * model.hidden)) >= kLayersWanted)
    model = of_hidden(2 * model.hidden);
  model.layers = static_cast<std::uint32_t>(for_layers / layer_bytes(model));
  const std::uint64_t norm_bytes = model.hidden * kElementBytes;
  const std::uint64_t left = bytes - model.layers * layer_bytes(model) - norm_bytes;
  model.vocabulary = left / (2 * model.hidden * kElementBytes);
  return model;
}

std::vector<TensorInfo> DemoModel::tensors() const {
  std::vector<TensorInfo> out;
  out.push_back(bf16("model.embed_tokens.weight", {vocabulary, hidden}));
  for (std::uint32_t layer = 0; layer < layers; ++layer) add_layer(*this, layer, out);
  out.push_back(bf16("model.norm.weight", {hidden}));
  out.push_back(bf16("lm_head.weight", {vocabulary, hidden}));
  return out;
}

nlohmann::json DemoModel::config() const {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"attention_bias", false},
          {"decoder_sparse_step", 1},
          {"head_dim", head_dim},
          {"hidden_act", "silu"},
          {"hidden_size", hidden},
          {"intermediate_size", 3 * hidden},
          {"max_position_embeddings", 4096},
          {"mlp_only_layers", nlohmann::json::array()},
          {"model_type", "qwen3_moe"},
          {"moe_intermediate_size", expert_intermediate},
          {"norm_topk_prob", true},
          {"num_attention_heads", heads},
          {"num_experts", experts},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", layers},
          {"num_key_value_heads", key_value_heads},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000.0},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"vocab_size", vocabulary}};
}

}  // namespace wsync::cli
