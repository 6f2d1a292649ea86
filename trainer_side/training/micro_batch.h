// What one forward and one backward are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wsync::training {

// A target of reinforcement learning. Log-probabilities are natural logarithms, of the target under
// a policy, given what stands before it.
struct PolicyTarget {
  float advantage = 0;
  float behaviour = 0;  // log-probability under the policy that has generated it
  float reference = 0;  // under the policy to stay near; of no meaning where PolicyLoss::kl is 0
  friend bool operator==(const PolicyTarget&, const PolicyTarget&) = default;
};

// The clipped objective of PPO (Schulman et al. 2017, arXiv 1707.06347, section 3), as GRPO takes
// it for each token, with the penalty of its equation 4 (Shao et al. 2024, arXiv 2402.03300,
// section 4.1). The two bounds may differ (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.1).
struct PolicyLoss {
  float clip_low = 0.2F;   // the ratio of probabilities counts down to 1 - clip_low
  float clip_high = 0.2F;  // and up to 1 + clip_high
  float kl = 0;            // weight of the divergence from the reference policy
  friend bool operator==(const PolicyLoss&, const PolicyLoss&) = default;
};

// Whole sequences of one length: token ids and what each is followed by.
struct MicroBatch {
  std::size_t sequence = 0;
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint32_t> targets;
  // How much each target counts in the loss; empty: all count 1. The loss of a step is divided by
  // its tokens, those that count 0 included.
  std::vector<float> weights;
  // Empty: the loss of a target is its cross-entropy.
  std::vector<PolicyTarget> policy;
  PolicyLoss policy_loss;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

}  // namespace wsync::training
