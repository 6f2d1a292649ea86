#include "trainer_side/training/parameters.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "trainer_side/training/random.h"

namespace wsync::training {
namespace {

template <class Views, class Set>
Views dense_views(std::uint32_t layer, Set& dense) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const auto get = [&](const char* name) { return dense.matrix(prefix + name); };
  return {.input_norm = get("input_layernorm.weight"),
          .query = get("self_attn.q_proj.weight"),
          .key = get("self_attn.k_proj.weight"),
          .value = get("self_attn.v_proj.weight"),
          .output = get("self_attn.o_proj.weight"),
          .query_norm = get("self_attn.q_norm.weight"),
          .key_norm = get("self_attn.k_norm.weight"),
          .post_norm = get("post_attention_layernorm.weight"),
          .router = get("mlp.gate.weight"),
          .experts = {}};
}

template <class Matrix, class Set>
std::vector<ExpertViews<Matrix>> expert_views(std::uint32_t layer, Set& experts,
                                              ExpertRange range) {
  std::vector<ExpertViews<Matrix>> views;
  for (std::uint32_t expert = range.first; expert < range.first + range.count; ++expert) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.{}.", layer, expert);
    views.push_back({experts.matrix(prefix + "gate_proj.weight"),
                     experts.matrix(prefix + "up_proj.weight"),
                     experts.matrix(prefix + "down_proj.weight")});
  }
  return views;
}

}  // namespace

ParameterSet::ParameterSet(const std::vector<moe::Parameter>& parameters)
    : parameters_(parameters), offsets_{0} {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    offsets_.push_back(offsets_.back() + parameters_[i].elements());
    index_[parameters_[i].name] = i;
  }
  values_.assign(offsets_.back(), 0.0F);
}

std::size_t ParameterSet::index_of(const std::string& name) const {
  const auto found = index_.find(name);
  WSYNC_CHECK(found != index_.end(), name + " is no parameter of this set");
  return found->second;
}

std::span<float> ParameterSet::values(const std::string& name) {
  const std::size_t i = index_of(name);
  return all().subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
}
std::span<const float> ParameterSet::values(const std::string& name) const {
  const std::size_t i = index_of(name);
  return all().subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

moe::Matrix ParameterSet::matrix(const std::string& name) {
  const std::vector<std::uint64_t>& shape = parameters_[index_of(name)].shape;
  return shape.size() == 1 ? moe::Matrix(values(name), 1, shape[0])
                           : moe::Matrix(values(name), shape[0], shape[1]);
}
moe::ConstMatrix ParameterSet::matrix(const std::string& name) const {
  const std::vector<std::uint64_t>& shape = parameters_[index_of(name)].shape;
  return shape.size() == 1 ? moe::ConstMatrix(values(name), 1, shape[0])
                           : moe::ConstMatrix(values(name), shape[0], shape[1]);
}

LayerWeights layer_weights(std::uint32_t layer, const ParameterSet& dense,
                           const ParameterSet& experts, ExpertRange range) {
  LayerWeights views = dense_views<LayerWeights>(layer, dense);
  views.experts = expert_views<moe::ConstMatrix>(layer, experts, range);
  return views;
}
LayerGradients layer_gradients(std::uint32_t layer, ParameterSet& dense) {
  return dense_views<LayerGradients>(layer, dense);
}
ExpertGradients expert_gradients(std::uint32_t layer, ParameterSet& experts, ExpertRange range) {
  return expert_views<moe::Matrix>(layer, experts, range);
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
