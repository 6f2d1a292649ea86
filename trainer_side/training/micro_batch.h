// The input of one forward and one backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wsync::training {

// A target of reinforcement learning. Log-probabilities are natural logarithms: that of the target
// under a policy, given the preceding tokens.
struct PolicyTarget {
  float advantage = 0;
  float behaviour = 0;  // log-probability under the policy that generated it
  float reference = 0;  // log-probability under the reference policy; unused if PolicyLoss::kl is 0
  friend bool operator==(const PolicyTarget&, const PolicyTarget&) = default;
};

// The clipped objective of PPO (Schulman et al. 2017, arXiv 1707.06347, section 3), applied to each
// token as in GRPO, with the penalty of GRPO's equation 4 (Shao et al. 2024, arXiv 2402.03300,
// section 4.1). The two bounds may differ (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.1).
struct PolicyLoss {
  float clip_low = 0.2F;   // lower bound of the probability ratio: 1 - clip_low
  float clip_high = 0.2F;  // upper bound of the probability ratio: 1 + clip_high
  float kl = 0;            // weight of the divergence from the reference policy
  friend bool operator==(const PolicyLoss&, const PolicyLoss&) = default;
};

// Whole sequences of one length: token ids, and the token that follows each.
struct MicroBatch {
  std::size_t sequence = 0;
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint32_t> targets;
  // Weight of each target in the loss. Empty: all weights are 1. The loss of a step is divided by
  // its number of tokens, including those of weight 0.
  std::vector<float> weights;
  // Empty: the loss of a target is its cross-entropy.
  std::vector<PolicyTarget> policy;
  PolicyLoss policy_loss;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

}  // namespace wsync::training
