// Gradients against finite differences of the loss, parameter by parameter; and what a config.json
// may say.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "trainer_side/training/sequential.h"

namespace wsync::training {
namespace {

moe::ModelSpec small_spec(bool tied, bool normalise) {
  return {.vocabulary = 11,
          .hidden = 8,
          .layers = 2,
          .heads = 4,
          .key_value_heads = 2,
          .head_dim = 4,
          .experts = 4,
          .experts_per_token = 2,
          .expert_hidden = 6,
          .max_positions = 16,
          .normalise_top_k = normalise,
          .tied_embeddings = tied};
}

// Four sequences of eight tokens: enough for every expert to get some.
constexpr std::size_t kSequence = 8;
constexpr std::size_t kGradientTokens = 32;
MicroBatch small_batch() {
  MicroBatch batch{.sequence = kSequence, .tokens = {}, .targets = {}};
  for (std::uint32_t i = 0; i < kGradientTokens; ++i) {
    batch.tokens.push_back((i * 7 + 3) % 11);
    batch.targets.push_back((i * 5 + 1) % 11);
  }
  return batch;
}

ParameterSet drawn(const moe::ModelSpec& spec) {
  ParameterSet parameters(moe::all_parameters(spec));
  // Large enough that no path is lost in rounding.
  initialise(parameters, 3, 0.5);
  for (const moe::Parameter& parameter : parameters.parameters())
    if (parameter.shape.size() == 1) {
      const std::span<float> values = parameters.values(parameter.name);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 1.0F + 0.1F * static_cast<float>(i % 3);
    }
  return parameters;
}

class Gradients : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(Gradients, EqualFiniteDifferencesOfTheLoss) {
  const auto [tied, normalise] = GetParam();
  const moe::ModelSpec spec = small_spec(tied, normalise);
  ASSERT_TRUE(moe::check_spec(spec).has_value());
  ParameterSet weights = drawn(spec);
  const SequentialModel model(spec, weights, 16);
  const MicroBatch batch = small_batch();
  ParameterSet gradients(moe::all_parameters(spec));
  model.loss_and_gradients(batch, 1.0F, gradients);
  ParameterSet unused(moe::all_parameters(spec));
  for (const moe::Parameter& parameter : weights.parameters()) {
    const std::span<float> values = weights.values(parameter.name);
    const std::span<const float> gradient = std::as_const(gradients).values(parameter.name);
    // Along the gradient itself, where the change of the loss is largest.
    double squares = 0;
    for (const float g : gradient) squares += static_cast<double>(g) * static_cast<double>(g);
    const double norm = std::sqrt(squares);
    ASSERT_GT(norm, 1e-3) << parameter.name << " has no gradient: the test sees nothing of it";
    constexpr double kStep = 2e-3;
    const std::vector<float> before(values.begin(), values.end());
    const auto loss_at = [&](double step) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = before[i] + static_cast<float>(step * static_cast<double>(gradient[i]) / norm);
      return model.loss_and_gradients(batch, 1.0F, unused);
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    std::copy(before.begin(), before.end(), values.begin());
    EXPECT_NEAR(slope, norm, 0.02 * norm) << parameter.name;
  }
}
INSTANTIATE_TEST_SUITE_P(Models, Gradients, testing::Combine(testing::Bool(), testing::Bool()));

TEST(Sequential, ScaleAndAddition) {
  const moe::ModelSpec spec = small_spec(false, true);
  const ParameterSet weights = drawn(spec);
  const SequentialModel model(spec, weights, 16);
  ParameterSet once(moe::all_parameters(spec));
  ParameterSet twice(moe::all_parameters(spec));
  const double loss = model.loss_and_gradients(small_batch(), 0.5F, once);
  EXPECT_EQ(model.loss_and_gradients(small_batch(), 0.25F, twice), loss);
  EXPECT_EQ(model.loss_and_gradients(small_batch(), 0.25F, twice), loss);
  for (const moe::Parameter& parameter : once.parameters())
    for (std::size_t i = 0; i < parameter.elements(); ++i)
      EXPECT_NEAR(once.values(parameter.name)[i], twice.values(parameter.name)[i], 1e-4);
  EXPECT_NEAR(loss / kGradientTokens, std::log(11.0), 2.5);
}

// A token sees what came before it and nothing else.
TEST(Sequential, IsCausalAndKeepsSequencesApart) {
  const moe::ModelSpec spec = small_spec(false, true);
  const ParameterSet weights = drawn(spec);
  const SequentialModel model(spec, weights, 16);
  const MicroBatch batch = small_batch();
  MicroBatch changed = batch;
  changed.tokens[3] = (changed.tokens[3] + 1) % 11;
  const Buffer before = model.logits(batch);
  const Buffer after = model.logits(changed);
  for (std::size_t token = 0; token < kGradientTokens; ++token) {
    const auto a = before.matrix().row(token);
    const auto b = after.matrix().row(token);
    const bool same = std::equal(a.begin(), a.end(), b.begin());
    EXPECT_EQ(same, token < 3 || token >= kSequence) << token;
  }
}

// Not what is computed at the same time either: whichever sequences share its micro-batch and its
// experts, a sequence has the same bits. Wide enough that a processor's widest vectors are filled.
TEST(Sequential, ASequenceHasTheSameBitsAloneAndAmongOthers) {
  moe::ModelSpec spec = small_spec(false, true);
  spec.vocabulary = 45;
  spec.hidden = 64;
  spec.head_dim = 16;
  spec.expert_hidden = 48;
  const ParameterSet weights = drawn(spec);
  const SequentialModel model(spec, weights, kSequence);
  const MicroBatch all = small_batch();
  const Buffer together = model.logits(all);
  for (std::size_t first = 0; first < kGradientTokens; first += kSequence) {
    const auto from = all.tokens.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<std::uint32_t> tokens(from, from + kSequence);
    Buffer alone = model.logits({.sequence = kSequence, .tokens = tokens, .targets = tokens});
    const auto expected = together.matrix().part(first, kSequence).values();
    EXPECT_TRUE(std::ranges::equal(alone.matrix().values(), expected)) << "tokens from " << first;
  }
}

TEST(Parameters, AreTheSameForTheSameSeedWhateverElseThereIs) {
  const moe::ModelSpec spec = small_spec(false, true);
  ParameterSet all(moe::all_parameters(spec));
  initialise(all, 7);
  ParameterSet some(moe::layer_parameters(spec, 1));
  initialise(some, 7);
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight";
  const auto a = all.values(name);
  const auto b = some.values(name);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  initialise(some, 8);
  EXPECT_FALSE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

}  // namespace
}  // namespace wsync::training
