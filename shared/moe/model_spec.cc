#include "shared/moe/model_spec.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync::moe {
namespace {

using nlohmann::json;

tl::unexpected<Error> wrong(std::string_view where, const std::string& why) {
  return fail(ErrorCode::kInvalidInput, fmt::format("{}: {}", where, why));
}

// Reads keys of config.json and keeps the first error.
class ConfigReader {
 public:
  ConfigReader(const json& config, std::string_view where) : config_(config), where_(where) {}

  void size(const char* key, std::uint32_t& value) {
    if (!config_.contains(key)) return complain(fmt::format("'{}' is missing", key));
    const json& found = config_.at(key);
    if (!found.is_number_unsigned() || found.get<std::uint64_t>() > limits::kModelDimension)
      return complain(fmt::format("'{}' is {}; expected a whole number up to {}", key, found.dump(),
                                  limits::kModelDimension));
    value = found.get<std::uint32_t>();
  }
  void number(const json& object, const char* key, double& value) {
    if (!object.contains(key)) return;
    const json& found = object.at(key);
    if (!found.is_number() || !(found.get<double>() > 0))
      return complain(fmt::format("'{}' is {}; expected a number above 0", key, found.dump()));
    value = found.get<double>();
  }
  void number(const char* key, double& value) { number(config_, key, value); }
  void flag(const char* key, bool& value) {
    if (!config_.contains(key)) return;
    if (!config_.at(key).is_boolean())
      return complain(
          fmt::format("'{}' is {}; expected true or false", key, config_.at(key).dump()));
    value = config_.at(key).get<bool>();
  }
  // Checks a key that may be absent or null, and otherwise must have this value.
  void only(const char* key, const json& expected) {
    if (!config_.contains(key) || config_.at(key).is_null() || config_.at(key) == expected) return;
    complain(fmt::format("'{}' is {}; only {} is supported", key, config_.at(key).dump(),
                         expected.dump()));
  }
  // Reads a size that has two names. Both may be there if they agree.
  void size(const char* key, const char* other, std::uint32_t& value) {
    if (!config_.contains(key) && !config_.contains(other))
      return complain(fmt::format("'{}' (or '{}') is missing", key, other));
    if (config_.contains(key)) size(key, value);
    if (!config_.contains(other)) return;
    const std::uint32_t first = value;
    size(other, value);
    if (config_.contains(key) && value != first)
      complain(fmt::format("'{}' is {}, but '{}' is {}; expected one number of experts", key, first,
                           other, value));
  }
  void rope() {
    number("rope_theta", theta_);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (!config_.contains(key) || config_.at(key).is_null()) continue;
      const json& rope = config_.at(key);
      if (!rope.is_object()) return complain(fmt::format("'{}' is not an object", key));
      const json type = rope.value("rope_type", rope.value("type", json("default")));
      if (type != "default")
        return complain(
            fmt::format("'{}' is of type {}; only default is supported", key, type.dump()));
      if (const json part = rope.value("partial_rotary_factor", json(1)); part != 1)
        return complain(fmt::format("'partial_rotary_factor' of '{}' is {}; only 1 is supported",
                                    key, part.dump()));
      const double theta = theta_;
      number(rope, "rope_theta", theta_);
      if (config_.contains("rope_theta") && theta_ != theta)
        return complain(fmt::format("'rope_theta' is {}, but that of '{}' is {}; expected the same",
                                    theta, key, theta_));
    }
  }
  // Reads the end token. Any other value than a token number is ignored: the text then has no end
  // token. This key does not affect the logits.
  void end_token(std::uint32_t vocabulary, std::optional<std::uint32_t>& out) const {
    const auto found = config_.find("eos_token_id");
    if (found != config_.end() && found->is_number_unsigned() &&
        found->get<std::uint64_t>() < vocabulary)
      out = found->get<std::uint32_t>();
  }
  void complain(const std::string& why) {
    if (complaint_.empty()) complaint_ = why;
  }

  [[nodiscard]] const std::string& complaint() const { return complaint_; }
  [[nodiscard]] double theta() const { return theta_; }

 private:
  const json& config_;
  std::string_view where_;
  std::string complaint_;
  double theta_ = 10'000;
};

// Checks the total size of the parameters. Each size can be valid alone while the total is not.
// This runs before memory is allocated, even for the names.
Result<> check_whole(const ModelSpec& spec) {
  constexpr std::uint64_t kElements = limits::kModelBytesMax / sizeof(float);
  const auto too_many = [&](const char* what, std::uint64_t max) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} layers with {} experts of {} x {} each, {} heads of {}, and a "
                            "vocabulary of {}: more than {} {}, the limit",
                            spec.layers, spec.experts, spec.hidden, spec.expert_hidden, spec.heads,
                            spec.head_dim, spec.vocabulary, max, what));
  };
  if (std::uint64_t{spec.heads} * spec.head_dim > limits::kModelDimension)
    return too_many("elements of all heads", limits::kModelDimension);
  if (std::uint64_t{spec.layers} * spec.experts > limits::kTensorCount)
    return too_many("parameters", limits::kTensorCount);
  const std::vector<Parameter> layer = layer_parameters(spec, 0);
  if (spec.layers * layer.size() > limits::kTensorCount)
    return too_many("parameters", limits::kTensorCount);
  std::uint64_t left = kElements;
  const auto fits = [&left](const Parameter& parameter, std::uint64_t times) {
    if (parameter.elements() > left / times) return false;
    left -= parameter.elements() * times;
    return true;
  };
  const bool all_fit = fits(embedding_of(spec), 1) && fits(head_of(spec), 1) &&
                       std::all_of(layer.begin(), layer.end(), [&](const Parameter& parameter) {
                         return fits(parameter, spec.layers);
                       });
  if (!all_fit) return too_many("elements", kElements);
  return {};
}

}  // namespace

Result<> check_spec(const ModelSpec& spec) {
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::kInvalidInput, std::move(why));
  };
  for (const auto& [name, value] :
       {std::pair{"vocab_size", spec.vocabulary}, std::pair{"hidden_size", spec.hidden},
        std::pair{"num_hidden_layers", spec.layers}, std::pair{"num_attention_heads", spec.heads},
        std::pair{"num_key_value_heads", spec.key_value_heads},
        std::pair{"head_dim", spec.head_dim}, std::pair{"num_experts", spec.experts},
        std::pair{"num_experts_per_tok", spec.experts_per_token},
        std::pair{"moe_intermediate_size", spec.expert_hidden},
        std::pair{"max_position_embeddings", spec.max_positions}})
    if (value < 1 || value > limits::kModelDimension)
      return refuse(
          fmt::format("'{}' is {}; expected 1 to {}", name, value, limits::kModelDimension));
  if (spec.heads % spec.key_value_heads != 0)
    return refuse(fmt::format("{} query heads cannot be divided evenly among {} key-value heads",
                              spec.heads, spec.key_value_heads));
  if (spec.head_dim % 2 != 0)
    return refuse(
        fmt::format("'head_dim' is {}; rotary embeddings need an even number", spec.head_dim));
  if (spec.experts_per_token > spec.experts)
    return refuse(
        fmt::format("'num_experts_per_tok' is {}; expected at most 'num_experts', which is {}",
                    spec.experts_per_token, spec.experts));
  return check_whole(spec);
}

Result<ModelSpec> read_config(std::string_view text, std::string_view where) {
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object()) return wrong(where, "it is not a JSON object");
  ConfigReader reader(config, where);
  ModelSpec spec;
  if (config.value("model_type", json()) != "qwen3_moe")
    reader.complain(fmt::format("'model_type' is {}; only \"qwen3_moe\" is supported",
                                config.value("model_type", json()).dump()));
  reader.size("vocab_size", spec.vocabulary);
  reader.size("hidden_size", spec.hidden);
  reader.size("num_hidden_layers", spec.layers);
  reader.size("num_attention_heads", spec.heads);
  reader.size("num_key_value_heads", spec.key_value_heads);
  reader.size("num_experts", "num_local_experts", spec.experts);
  reader.size("num_experts_per_tok", spec.experts_per_token);
  reader.size("moe_intermediate_size", spec.expert_hidden);
  reader.size("max_position_embeddings", spec.max_positions);
  if (config.contains("head_dim") && !config.at("head_dim").is_null())
    reader.size("head_dim", spec.head_dim);
  else
    spec.head_dim = spec.heads == 0 ? 0 : spec.hidden / spec.heads;
  reader.number("rms_norm_eps", spec.rms_norm_epsilon);
  reader.rope();
  spec.rope_theta = reader.theta();
  // Default of transformers if the key is absent.
  spec.normalise_top_k = false;
  reader.flag("norm_topk_prob", spec.normalise_top_k);
  reader.flag("tie_word_embeddings", spec.tied_embeddings);
  reader.end_token(spec.vocabulary, spec.end_token);
  reader.only("hidden_act", "silu");
  reader.only("attention_bias", false);
  reader.only("use_sliding_window", false);
  reader.only("decoder_sparse_step", 1);
  reader.only("mlp_only_layers", json::array());
  if (!reader.complaint().empty()) return wrong(where, reader.complaint());
  if (const Result<> possible = check_spec(spec); !possible)
    return fail(possible.error().with_context(where));
  return spec;
}

Result<ModelSpec> load_spec(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const auto json = WSYNC_TRY(read_small_file(path, kModelConfigBytes));
  return read_config({reinterpret_cast<const char*>(json.data()), json.size()}, path);
}

std::string write_config(const ModelSpec& spec) {
  nlohmann::ordered_json config = {
      {"architectures", {"Qwen3MoeForCausalLM"}},
      {"model_type", "qwen3_moe"},
      {"torch_dtype", "float32"},
      {"vocab_size", spec.vocabulary},
      {"hidden_size", spec.hidden},
      {"intermediate_size", spec.expert_hidden},
      {"moe_intermediate_size", spec.expert_hidden},
      {"num_hidden_layers", spec.layers},
      {"num_attention_heads", spec.heads},
      {"num_key_value_heads", spec.key_value_heads},
      {"head_dim", spec.head_dim},
      {"num_experts", spec.experts},
      {"num_experts_per_tok", spec.experts_per_token},
      {"norm_topk_prob", spec.normalise_top_k},
      {"decoder_sparse_step", 1},
      {"mlp_only_layers", json::array()},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"use_sliding_window", false},
      {"rms_norm_eps", spec.rms_norm_epsilon},
      {"rope_theta", spec.rope_theta},
      {"rope_scaling", nullptr},
      {"max_position_embeddings", spec.max_positions},
      {"tie_word_embeddings", spec.tied_embeddings},
  };
  if (spec.end_token) config["eos_token_id"] = *spec.end_token;
  return config.dump(2) + "\n";
}

std::uint64_t Parameter::elements() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t size : shape) product *= size;
  return product;
}

Parameter embedding_of(const ModelSpec& spec) {
  return {kEmbedding, {spec.vocabulary, spec.hidden}};
}
Parameter head_of(const ModelSpec& spec) { return {kHead, {spec.vocabulary, spec.hidden}}; }
Parameter final_norm_of(const ModelSpec& spec) { return {kFinalNorm, {spec.hidden}}; }

std::vector<Parameter> layer_parameters(const ModelSpec& spec, std::uint32_t layer,
                                        ExpertForm form) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::uint64_t queries = std::uint64_t{spec.heads} * spec.head_dim;
  const std::uint64_t keys = std::uint64_t{spec.key_value_heads} * spec.head_dim;
  std::vector<Parameter> parameters{
      {prefix + "input_layernorm.weight", {spec.hidden}},
      {prefix + "self_attn.q_proj.weight", {queries, spec.hidden}},
      {prefix + "self_attn.k_proj.weight", {keys, spec.hidden}},
      {prefix + "self_attn.v_proj.weight", {keys, spec.hidden}},
      {prefix + "self_attn.o_proj.weight", {spec.hidden, queries}},
      {prefix + "self_attn.q_norm.weight", {spec.head_dim}},
      {prefix + "self_attn.k_norm.weight", {spec.head_dim}},
      {prefix + "post_attention_layernorm.weight", {spec.hidden}},
      {prefix + "mlp.gate.weight", {spec.experts, spec.hidden}},
  };
  if (form == ExpertForm::kFused) {
    const std::uint64_t both = 2 * std::uint64_t{spec.expert_hidden};
    parameters.push_back({prefix + "mlp.experts.gate_up_proj", {spec.experts, both, spec.hidden}});
    parameters.push_back(
        {prefix + "mlp.experts.down_proj", {spec.experts, spec.hidden, spec.expert_hidden}});
    return parameters;
  }
  for (std::uint32_t expert = 0; expert < spec.experts; ++expert) {
    const std::string of_expert = fmt::format("{}mlp.experts.{}.", prefix, expert);
    parameters.push_back({of_expert + "gate_proj.weight", {spec.expert_hidden, spec.hidden}});
    parameters.push_back({of_expert + "up_proj.weight", {spec.expert_hidden, spec.hidden}});
    parameters.push_back({of_expert + "down_proj.weight", {spec.hidden, spec.expert_hidden}});
  }
  return parameters;
}

std::vector<Parameter> all_parameters(const ModelSpec& spec, ExpertForm form) {
  std::vector<Parameter> parameters{embedding_of(spec)};
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer)
    for (Parameter& parameter : layer_parameters(spec, layer, form))
      parameters.push_back(std::move(parameter));
  parameters.push_back(final_norm_of(spec));
  if (!spec.tied_embeddings) parameters.push_back(head_of(spec));
  return parameters;
}

}  // namespace wsync::moe
