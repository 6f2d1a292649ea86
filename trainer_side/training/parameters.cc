#include "trainer_side/training/parameters.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "trainer_side/training/random.h"

namespace wsync::training {
namespace {

template <class Views, class Get>
Views views_of(const moe::ModelSpec& spec, std::uint32_t layer, const Get& get) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  Views views{.input_norm = get(prefix + "input_layernorm.weight"),
              .query = get(prefix + "self_attn.q_proj.weight"),
              .key = get(prefix + "self_attn.k_proj.weight"),
              .value = get(prefix + "self_attn.v_proj.weight"),
              .output = get(prefix + "self_attn.o_proj.weight"),
              .query_norm = get(prefix + "self_attn.q_norm.weight"),
              .key_norm = get(prefix + "self_attn.k_norm.weight"),
              .post_norm = get(prefix + "post_attention_layernorm.weight"),
              .router = get(prefix + "mlp.gate.weight"),
              .experts = {}};
  for (std::uint32_t expert = 0; expert < spec.experts; ++expert) {
    const std::string of_expert = fmt::format("{}mlp.experts.{}.", prefix, expert);
    views.experts.push_back({get(of_expert + "gate_proj.weight"), get(of_expert + "up_proj.weight"),
                             get(of_expert + "down_proj.weight")});
  }
  return views;
}

}  // namespace

ParameterSet::ParameterSet(const std::vector<moe::Parameter>& parameters)
    : parameters_(parameters) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    values_[parameters_[i].name].assign(parameters_[i].elements(), 0.0F);
    index_[parameters_[i].name] = i;
  }
}

const moe::Parameter& ParameterSet::parameter(const std::string& name) const {
  const auto found = index_.find(name);
  WSYNC_CHECK(found != index_.end(), name + " is no parameter of this set");
  return parameters_[found->second];
}

std::span<float> ParameterSet::values(const std::string& name) {
  const auto found = values_.find(name);
  WSYNC_CHECK(found != values_.end(), name + " is no parameter of this set");
  return found->second;
}
std::span<const float> ParameterSet::values(const std::string& name) const {
  const auto found = values_.find(name);
  WSYNC_CHECK(found != values_.end(), name + " is no parameter of this set");
  return found->second;
}

moe::Matrix ParameterSet::matrix(const std::string& name) {
  const std::vector<std::uint64_t>& shape = parameter(name).shape;
  return shape.size() == 1 ? moe::Matrix(values(name), 1, shape[0])
                           : moe::Matrix(values(name), shape[0], shape[1]);
}
moe::ConstMatrix ParameterSet::matrix(const std::string& name) const {
  const std::vector<std::uint64_t>& shape = parameter(name).shape;
  return shape.size() == 1 ? moe::ConstMatrix(values(name), 1, shape[0])
                           : moe::ConstMatrix(values(name), shape[0], shape[1]);
}

LayerWeights ParameterSet::layer(const moe::ModelSpec& spec, std::uint32_t layer) const {
  return views_of<LayerWeights>(spec, layer,
                                [this](const std::string& name) { return matrix(name); });
}
LayerGradients ParameterSet::layer_gradients(const moe::ModelSpec& spec, std::uint32_t layer) {
  return views_of<LayerGradients>(spec, layer,
                                  [this](const std::string& name) { return matrix(name); });
}

void initialise(ParameterSet& parameters, std::uint64_t seed, double standard_deviation) {
  for (const moe::Parameter& parameter : parameters.parameters()) {
    const std::span<float> values = parameters.values(parameter.name);
    if (parameter.shape.size() == 1) {
      std::fill(values.begin(), values.end(), 1.0F);
      continue;
    }
    const Digest digest = digest_of(std::as_bytes(std::span(parameter.name)));
    Random random(seed ^ digest.low);
    for (float& value : values) value = static_cast<float>(random.normal() * standard_deviation);
  }
}

}  // namespace wsync::training
