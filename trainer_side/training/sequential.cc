#include "trainer_side/training/sequential.h"

#include <utility>

#include "shared/base/check.h"
#include "trainer_side/training/gradients.h"

namespace wsync::training {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kFinalNorm = "model.norm.weight";
constexpr const char* kHead = "lm_head.weight";

}  // namespace

struct SequentialModel::Forward {
  std::vector<LayerRun> layers;
  Buffer hidden;  // before the final norm
  Buffer normed;
  std::vector<float> inverse_rms;
  Buffer logits;
};

SequentialModel::SequentialModel(const moe::ModelSpec& spec, const ParameterSet& weights,
                                 std::size_t positions)
    : spec_(spec), weights_(weights), rotary_(spec.head_dim, positions, spec.rope_theta) {
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer)
    layers_.push_back(weights.layer(spec, layer));
}

moe::ConstMatrix SequentialModel::head() const {
  return weights_.matrix(spec_.tied_embeddings ? kEmbedding : kHead);
}

void SequentialModel::run_forward(const MicroBatch& batch, Forward& forward) const {
  const std::size_t tokens = batch.tokens.size();
  for (const std::uint32_t token : batch.tokens)
    WSYNC_CHECK(token < spec_.vocabulary, "a token is one of the vocabulary");
  forward.hidden = Buffer(tokens, spec_.hidden);
  moe::embed(weights_.matrix(kEmbedding), batch.tokens, forward.hidden.matrix());
  forward.layers.reserve(layers_.size());
  for (const LayerWeights& weights : layers_) {
    LayerRun& layer = forward.layers.emplace_back(spec_, weights, rotary_, batch.sequence);
    layer.attention(forward.hidden.matrix());
    layer.dispatch();
    layer.mlp();
    layer.combine(forward.hidden.matrix());
  }
  forward.normed = Buffer(tokens, spec_.hidden);
  forward.inverse_rms.resize(tokens);
  moe::rms_norm(forward.hidden.matrix(), weights_.values(kFinalNorm),
                static_cast<float>(spec_.rms_norm_epsilon), forward.normed.matrix(),
                forward.inverse_rms);
  forward.logits = Buffer(tokens, spec_.vocabulary);
  moe::linear(forward.normed.matrix(), head(), forward.logits.matrix());
}

Buffer SequentialModel::logits(const MicroBatch& batch) const {
  Forward forward;
  run_forward(batch, forward);
  return std::move(forward.logits);
}

double SequentialModel::loss_and_gradients(const MicroBatch& batch, float scale,
                                           ParameterSet& gradients) const {
  Forward forward;
  run_forward(batch, forward);
  const std::size_t tokens = batch.tokens.size();
  Buffer dlogits(tokens, spec_.vocabulary);
  const double loss =
      moe::cross_entropy(forward.logits.matrix(), batch.targets, scale, dlogits.matrix());
  Buffer dnormed(tokens, spec_.hidden);
  moe::linear_input_gradient(dlogits.matrix(), head(), dnormed.matrix());
  Buffer dhidden(tokens, spec_.hidden);
  rms_norm_input_gradient(dnormed.matrix(), forward.hidden.matrix(), weights_.values(kFinalNorm),
                          forward.inverse_rms, dhidden.matrix(), moe::Into::kReplace);
  rms_norm_weight_gradient(dnormed.matrix(), forward.hidden.matrix(), forward.inverse_rms,
                           gradients.values(kFinalNorm));
  moe::linear_weight_gradient(dlogits.matrix(), forward.normed.matrix(),
                              gradients.matrix(spec_.tied_embeddings ? kEmbedding : kHead));
  for (std::size_t layer = forward.layers.size(); layer-- > 0;) {
    LayerRun& run = forward.layers[layer];
    run.combine_gradient(dhidden.matrix());
    run.mlp_gradient();
    run.dispatch_gradient();
    run.attention_gradient(dhidden.matrix());
    run.weight_gradient(gradients.layer_gradients(spec_, static_cast<std::uint32_t>(layer)));
  }
  embed_gradient(dhidden.matrix(), batch.tokens, gradients.matrix(kEmbedding));
  return loss;
}

}  // namespace wsync::training
