#include "trainer_side/training/sequential.h"

#include <utility>

#include "shared/base/check.h"
#include "trainer_side/training/gradients.h"
#include "trainer_side/training/loss.h"

namespace wsync::training {
namespace {

// A team with one member cannot wait for another, and memory is not limited here: no call can fail.
void expect_alone(const Result<>& result) {
  WSYNC_CHECK(result.has_value(), "a single process has no peer that can fail");
}

}  // namespace

struct SequentialModel::Forward {
  Forward(const moe::ModelSpec& spec, const MicroBatch& batch)
      : device("activations of one micro-batch", 1,
               spec.layers * LayerRun::floats(spec, batch.tokens.size(), batch.sequence, 1)),
        activations(device) {}

  SlotPool device;
  Activations activations;
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
    layers_.push_back(layer_weights(layer, weights, weights, experts_of(spec, 0, 1)));
}

moe::ConstMatrix SequentialModel::head() const {
  return weights_.matrix(spec_.tied_embeddings ? moe::kEmbedding : moe::kHead);
}

std::unique_ptr<SequentialModel::Forward> SequentialModel::run_forward(
    const MicroBatch& batch) const {
  const std::size_t tokens = batch.tokens.size();
  for (const std::uint32_t token : batch.tokens)
    WSYNC_CHECK(token < spec_.vocabulary, "a token is one of the vocabulary");
  auto forward = std::make_unique<Forward>(spec_, batch);
  expect_alone(forward->activations.begin());
  forward->hidden = Buffer(tokens, spec_.hidden);
  moe::embed(weights_.matrix(moe::kEmbedding), batch.tokens, forward->hidden.matrix());
  forward->layers.reserve(layers_.size());
  for (const LayerWeights& weights : layers_) {
    LayerRun& layer = forward->layers.emplace_back(spec_, weights, rotary_, alone_, batch.sequence,
                                                   forward->activations);
    layer.attention(forward->hidden.matrix());
    expect_alone(layer.dispatch());
    layer.mlp();
    expect_alone(layer.combine(forward->hidden.matrix()));
  }
  forward->normed = Buffer(tokens, spec_.hidden);
  forward->inverse_rms.resize(tokens);
  moe::rms_norm(forward->hidden.matrix(), weights_.values(moe::kFinalNorm),
                static_cast<float>(spec_.rms_norm_epsilon), forward->normed.matrix(),
                forward->inverse_rms);
  forward->logits = Buffer(tokens, spec_.vocabulary);
  moe::linear(forward->normed.matrix(), head(), forward->logits.matrix());
  return forward;
}

Buffer SequentialModel::logits(const MicroBatch& batch) const {
  return std::move(run_forward(batch)->logits);
}

std::vector<float> SequentialModel::log_probabilities(const MicroBatch& batch) const {
  std::vector<float> of_targets(batch.targets.size());
  target_log_probabilities(logits(batch).matrix(), batch.targets, of_targets);
  return of_targets;
}

double SequentialModel::loss_and_gradients(const MicroBatch& batch, float scale,
                                           ParameterSet& gradients,
                                           std::optional<moe::Matrix> tied_head) const {
  const std::unique_ptr<Forward> run = run_forward(batch);
  Forward& forward = *run;
  const std::size_t tokens = batch.tokens.size();
  Buffer dlogits(tokens, spec_.vocabulary);
  const double loss =
      loss_and_logit_gradients(batch, forward.logits.matrix(), scale, dlogits.matrix());
  Buffer dnormed(tokens, spec_.hidden);
  moe::linear_input_gradient(dlogits.matrix(), head(), dnormed.matrix());
  Buffer dhidden(tokens, spec_.hidden);
  rms_norm_input_gradient(dnormed.matrix(), forward.hidden.matrix(),
                          weights_.values(moe::kFinalNorm), forward.inverse_rms, dhidden.matrix(),
                          moe::Into::kReplace);
  rms_norm_weight_gradient(dnormed.matrix(), forward.hidden.matrix(), forward.inverse_rms,
                           gradients.values(moe::kFinalNorm));
  if (!tied_head)
    tied_head = gradients.matrix(spec_.tied_embeddings ? moe::kEmbedding : moe::kHead);
  moe::linear_weight_gradient(dlogits.matrix(), forward.normed.matrix(), *tied_head);
  for (std::size_t i = forward.layers.size(); i-- > 0;) {
    const auto layer = static_cast<std::uint32_t>(i);
    LayerRun& of_layer = forward.layers[i];
    expect_alone(of_layer.combine_gradient(dhidden.matrix()));
    of_layer.mlp_gradient();
    expect_alone(of_layer.dispatch_gradient());
    of_layer.attention_gradient(dhidden.matrix());
    const ExpertGradients experts = expert_gradients(layer, gradients, experts_of(spec_, 0, 1));
    of_layer.weight_gradient(layer_gradients(layer, gradients), {&experts, 1});
  }
  embed_gradient(dhidden.matrix(), batch.tokens, gradients.matrix(moe::kEmbedding));
  return loss;
}

}  // namespace wsync::training
