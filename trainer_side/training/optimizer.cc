#include "trainer_side/training/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::training {
namespace {

// Value that torch.nn.utils.clip_grad_norm_ adds to the norm.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

Result<> check_optimizer(const OptimizerOptions& options) {
  const auto refuse = [](const char* field, const char* expected, double found) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("optimizer: {}: expected {}, found {}", field, expected, found));
  };
  const auto finite = [](double value) {  // checks the float too, because that is what is used
    return std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max());
  };
  if (!finite(options.learning_rate) || options.learning_rate <= 0)
    return refuse("learning_rate", "a number above 0", options.learning_rate);
  if (!(options.final_learning_rate >= 0 && options.final_learning_rate <= options.learning_rate))
    return refuse("final_learning_rate", "a number from 0 to learning_rate",
                  options.final_learning_rate);
  for (const auto& [field, beta] :
       {std::pair{"beta1", options.beta1}, std::pair{"beta2", options.beta2}})
    if (!(beta >= 0 && beta < 1)) return refuse(field, "a number from 0, below 1", beta);
  if (!finite(options.epsilon) ||
      options.epsilon < static_cast<double>(std::numeric_limits<float>::min()))
    return refuse("epsilon", "1.2e-38 or more: it keeps a division from being one by 0",
                  options.epsilon);
  if (!finite(options.weight_decay) || options.weight_decay < 0)
    return refuse("weight_decay", "0 or more", options.weight_decay);
  if (!finite(options.clip_norm) || options.clip_norm < 0)
    return refuse("clip_norm", "0 (no clipping) or more", options.clip_norm);
  return {};
}

double learning_rate_of(const OptimizerOptions& options, std::uint64_t step) {
  WSYNC_CHECK(step > 0, "steps count from 1");
  if (step <= options.warmup_steps)
    return options.learning_rate * static_cast<double>(step) /
           static_cast<double>(options.warmup_steps);
  if (step >= options.total_steps) return options.final_learning_rate;
  const double done = static_cast<double>(step - options.warmup_steps) /
                      static_cast<double>(options.total_steps - options.warmup_steps);
  return options.final_learning_rate + (options.learning_rate - options.final_learning_rate) *
                                           (1 + std::cos(std::numbers::pi * done)) / 2;
}

double square_sum(std::span<const float> block) {
  double sum = 0;
  for (const float value : block) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

double norm_of(std::span<const double> block_sums) {
  double sum = 0;
  for (const double block : block_sums) sum += block;
  return std::sqrt(sum);
}

float clip_factor(double norm, double clip_norm) {
  if (clip_norm == 0) return 1;
  return static_cast<float>(std::min(1.0, clip_norm / (norm + kClipEpsilon)));
}

void adamw_step(const OptimizerOptions& options, std::uint64_t step, bool decays,
                float gradient_factor, std::span<const float> gradient, std::span<float> weights,
                AdamState state) {
  const std::size_t elements = weights.size();
  WSYNC_CHECK(gradient.size() == elements && state.mean.size() == elements &&
                  state.variance.size() == elements,
              "gradient, weights and state are of the same elements");
  const double rate = learning_rate_of(options, step);
  const auto steps = static_cast<double>(step);
  const auto kept = static_cast<float>(decays ? 1 - rate * options.weight_decay : 1);
  const auto beta1 = static_cast<float>(options.beta1);
  const auto beta2 = static_cast<float>(options.beta2);
  const auto new1 = static_cast<float>(1 - options.beta1);
  const auto new2 = static_cast<float>(1 - options.beta2);
  const auto step_size = static_cast<float>(rate / (1 - std::pow(options.beta1, steps)));
  const auto correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, steps)));
  const auto epsilon = static_cast<float>(options.epsilon);
  // No product is fused with a sum: g++ does not do this with -std=c++20. The bits of an element
  // therefore do not depend on whether the vectorised loop or its scalar remainder computes it.
  for (std::size_t i = 0; i < elements; ++i) {
    const float g = gradient[i] * gradient_factor;
    state.mean[i] = state.mean[i] * beta1 + g * new1;
    state.variance[i] = state.variance[i] * beta2 + g * g * new2;
    const float scale = std::sqrt(state.variance[i]) / correction + epsilon;
    weights[i] = weights[i] * kept - step_size * (state.mean[i] / scale);
  }
}

}  // namespace wsync::training
