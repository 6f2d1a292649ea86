#include "trainer_side/training/reference_trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace wsync::training {
namespace {

void add(std::span<const float> from, std::span<float> to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

std::optional<std::size_t> first_not_finite(const ParameterSet& set) {
  for (std::size_t i = 0; i < set.parameters().size(); ++i)
    for (const float value : set.values(set.parameters()[i].name))
      if (!std::isfinite(value)) return i;
  return std::nullopt;
}

}  // namespace

ReferenceTrainer::ReferenceTrainer(const moe::ModelSpec& spec, const OptimizerOptions& optimizer,
                                   ParameterSet weights)
    : spec_(spec),
      optimizer_(optimizer),
      weights_(std::move(weights)),
      mean_(weights_.parameters()),
      variance_(weights_.parameters()) {}

Result<StepResult> ReferenceTrainer::run_step(
    std::uint64_t step, const std::vector<std::vector<MicroBatch>>& replicas) {
  const MicroBatch& any = replicas.front().front();
  std::size_t micro_batches = 0;
  for (const auto& replica : replicas) micro_batches += replica.size();
  const std::size_t tokens = any.tokens.size() * micro_batches;
  const SequentialModel model(spec_, weights_, any.sequence);
  ParameterSet gradients(weights_.parameters());
  ParameterSet head(std::vector{moe::embedding_of(spec_)});  // of tied embeddings
  double loss = 0;
  for (const auto& replica : replicas) {
    ParameterSet of_replica(weights_.parameters());
    ParameterSet head_of_replica(head.parameters());
    double loss_of_replica = 0;
    for (const MicroBatch& batch : replica)
      loss_of_replica += model.loss_and_gradients(
          batch, 1.0F / static_cast<float>(tokens), of_replica,
          spec_.tied_embeddings ? std::optional(head_of_replica.matrix(moe::kEmbedding))
                                : std::nullopt);
    if (&replica == &replicas.front()) {  // copied, because adding to zero would change -0 to +0
      gradients = std::move(of_replica);
      head = std::move(head_of_replica);
    } else {
      add(std::as_const(of_replica).all(), gradients.all());
      add(std::as_const(head_of_replica).all(), head.all());
    }
    loss += loss_of_replica;
  }
  if (spec_.tied_embeddings) add(std::as_const(head).all(), gradients.values(moe::kEmbedding));

  std::vector<double> blocks;
  const std::vector<NormBlock> all_blocks = norm_blocks(weights_.parameters());
  for (const NormBlock& block : all_blocks)
    blocks.push_back(square_sum(gradients.all().subspan(block.first, block.count)));
  const StepResult result{.loss = loss / static_cast<double>(tokens),
                          .gradient_norm = norm_of(blocks),
                          .learning_rate = learning_rate_of(optimizer_, step)};
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
    return fail(why_not_finite(step, result.loss, gradients));
  const float factor = clip_factor(result.gradient_norm, optimizer_.clip_norm);
  for (const moe::Parameter& parameter : weights_.parameters())
    adamw_step(
        optimizer_, step, parameter.shape.size() > 1, factor,
        std::as_const(gradients).values(parameter.name), weights_.values(parameter.name),
        {.mean = mean_.values(parameter.name), .variance = variance_.values(parameter.name)});
  return result;
}

Error ReferenceTrainer::why_not_finite(std::uint64_t step, double loss,
                                       const ParameterSet& gradients) const {
  return not_finite(step, loss, weights_.parameters(), first_not_finite(weights_),
                    first_not_finite(gradients));
}

}  // namespace wsync::training
