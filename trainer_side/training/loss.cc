#include "trainer_side/training/loss.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "shared/base/check.h"
#include "shared/base/planted.h"
#include "shared/moe/operators.h"

namespace wsync::training {
namespace {

// The softmax of one row of logits. Subtracts the highest logit, so that exp cannot overflow.
class Softmax {
 public:
  explicit Softmax(std::span<const float> logits)
      : highest_(static_cast<double>(*std::max_element(logits.begin(), logits.end()))) {
    for (const float logit : logits) sum_ += std::exp(static_cast<double>(logit) - highest_);
  }
  [[nodiscard]] double probability(float logit) const {
    return std::exp(static_cast<double>(logit) - highest_) / sum_;
  }
  [[nodiscard]] double log_probability(float logit) const {
    return static_cast<double>(logit) - highest_ - std::log(sum_);
  }

 private:
  double highest_;
  double sum_ = 0;
};

struct TargetLoss {
  double value = 0;
  double slope = 0;  // derivative by the log-probability
};

// Returns the bound if the min of the objective selects the clipped ratio: a ratio beyond the bound
// on the side that the advantage favours. On the other side the ratio is used unchanged.
std::optional<double> clipped_to(double ratio, double advantage, const PolicyLoss& loss) {
  const bool above = advantage > 0 || planted("clip_wrong_side");
  const double bound =
      above ? 1 + static_cast<double>(loss.clip_high) : 1 - static_cast<double>(loss.clip_low);
  const bool is_beyond = above ? ratio > bound : ratio < bound;
  return is_beyond ? std::optional(bound) : std::nullopt;
}

TargetLoss policy_loss_of(double log_probability, const PolicyTarget& target,
                          const PolicyLoss& loss) {
  TargetLoss result;
  const auto advantage = static_cast<double>(target.advantage);
  if (advantage != 0) {  // an infinite ratio times 0 would be NaN
    const double ratio = std::exp(log_probability - static_cast<double>(target.behaviour));
    const std::optional<double> bound = clipped_to(ratio, advantage, loss);
    result.value = -bound.value_or(ratio) * advantage;
    // The derivative of the ratio by the log-probability is the ratio.
    if (!bound) result.slope = result.value;
  }
  if (loss.kl != 0) {
    const auto kl = static_cast<double>(loss.kl);
    // 1/q = exp(apart). expm1 stays precise if the two policies are almost equal.
    const double apart = static_cast<double>(target.reference) - log_probability;
    const double excess = std::expm1(apart);
    result.value += kl * (excess - apart);
    result.slope -= kl * excess;
  }
  return result;
}

// Loss of one target, multiplied by `weight`, which is not 0.
double policy_row(const PolicyTarget& of, const PolicyLoss& policy, std::span<const float> logits,
                  std::uint32_t target, double weight, float scale, std::span<float> dlogits) {
  const Softmax softmax(logits);
  const TargetLoss loss = policy_loss_of(softmax.log_probability(logits[target]), of, policy);
  if (loss.slope == 0) {
    std::fill(dlogits.begin(), dlogits.end(), 0.0F);
  } else {
    const double factor = static_cast<double>(scale) * weight * loss.slope;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double own = i == target ? 1 : 0;
      dlogits[i] = static_cast<float>(factor * (own - softmax.probability(logits[i])));
    }
  }
  return weight * loss.value;
}

void check_targets(moe::ConstMatrix logits, std::span<const std::uint32_t> targets) {
  WSYNC_CHECK(targets.size() == logits.rows() &&
                  std::all_of(targets.begin(), targets.end(),
                              [&](std::uint32_t target) { return target < logits.columns(); }),
              "each row of logits has a target of the vocabulary");
}

}  // namespace

bool has_loss_of_each_target(const MicroBatch& batch) noexcept {
  const std::size_t targets = batch.targets.size();
  return (batch.weights.empty() || batch.weights.size() == targets) &&
         (batch.policy.empty() || batch.policy.size() == targets);
}

bool is_valid(const PolicyLoss& loss) noexcept {
  const auto counts = [](float number) { return std::isfinite(number) && number >= 0; };
  return counts(loss.clip_low) && counts(loss.clip_high) && counts(loss.kl);
}

double loss_and_logit_gradients(const MicroBatch& batch, moe::ConstMatrix logits, float scale,
                                moe::Matrix dlogits) {
  check_targets(logits, batch.targets);
  WSYNC_CHECK(has_loss_of_each_target(batch),
              "weights and policy are empty or have one element for each target");
  WSYNC_CHECK(is_valid(batch.policy_loss),
              "the bounds of the ratio and the weight of the divergence are finite, 0 or more");
  WSYNC_CHECK(dlogits.rows() == logits.rows() && dlogits.columns() == logits.columns(),
              "gradients are of the shape of the logits");
  const std::span<const std::uint32_t> targets = batch.targets;
  double sum = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const float weight = batch.weights.empty() ? 1.0F : batch.weights[i];
    const std::span<float> gradient = dlogits.row(i);
    if (weight == 0)
      std::fill(gradient.begin(), gradient.end(), 0.0F);
    else if (batch.policy.empty())
      sum +=
          static_cast<double>(weight) * moe::cross_entropy(logits.part(i, 1), targets.subspan(i, 1),
                                                           scale * weight, dlogits.part(i, 1));
    else
      sum += policy_row(batch.policy[i], batch.policy_loss, logits.row(i), targets[i],
                        static_cast<double>(weight), scale, gradient);
  }
  return sum;
}

void target_log_probabilities(moe::ConstMatrix logits, std::span<const std::uint32_t> targets,
                              std::span<float> out) {
  check_targets(logits, targets);
  WSYNC_CHECK(out.size() == targets.size(), "each target gets a log-probability");
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const std::span<const float> row = logits.row(i);
    out[i] = static_cast<float>(Softmax(row).log_probability(row[targets[i]]));
  }
}

}  // namespace wsync::training
