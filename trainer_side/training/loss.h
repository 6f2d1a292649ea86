// Computes the loss of a micro-batch's targets from logits. Sums have a fixed order: the same
// inputs give the same bits. Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "shared/moe/matrix.h"
#include "trainer_side/training/micro_batch.h"

namespace wsync::training {

// Returns whether `weights` and `policy` each are empty or have one element for each target.
[[nodiscard]] bool has_loss_of_each_target(const MicroBatch& batch) noexcept;
// Returns whether all numbers are finite and none is below 0. A NaN as bound would clip nothing.
[[nodiscard]] bool is_valid(const PolicyLoss& loss) noexcept;

// Returns the loss summed over targets, in double and in their order. Sets dlogits to its gradient
// multiplied by `scale`. `logits` and `dlogits` are [tokens, vocabulary]. `batch` has a target
// below the vocabulary size for each row, and a valid `policy_loss`. With p the probability of a
// target by softmax(logits), and w its weight, its loss is
//
//  without `policy`: -w log p; with w = 1, the same bits as moe::cross_entropy();
//  with `policy`: w (-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
//                    + kl (1/q - log(1/q) - 1)),
//
// where r = p / exp(behaviour), A = advantage, and q = p / exp(reference). The first part is
// equation 7 of PPO, the second part equation 4 of GRPO (papers: see PolicyLoss). The gradient is
// exact: it is 0 where the min selects a clipped ratio, and that of r A where r equals a bound.
//
// A target of weight 0 adds no loss and has a gradient of 0, whatever its other values are. A ratio
// that overflows a double has no effect if it is clipped or if its advantage is 0. If it is used
// (advantage below 0), the loss is infinite and the gradient is not usable.
[[nodiscard]] double loss_and_logit_gradients(const MicroBatch& batch, moe::ConstMatrix logits,
                                              float scale, moe::Matrix dlogits);

// out[i] = log softmax(logits row i)[targets[i]], computed in double. `logits`: [targets,
// vocabulary].
void target_log_probabilities(moe::ConstMatrix logits, std::span<const std::uint32_t> targets,
                              std::span<float> out);

}  // namespace wsync::training
