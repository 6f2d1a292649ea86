// The loss of a micro-batch's targets, from logits. Sums run in a fixed order: the same inputs give
// the same bits. Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "shared/moe/matrix.h"
#include "trainer_side/training/micro_batch.h"

namespace wsync::training {

// Whether `weights` and `policy` are each empty or of one element for each target.
[[nodiscard]] bool has_loss_of_each_target(const MicroBatch& batch) noexcept;
// Whether its numbers are finite and none is below 0. A bound that is no number would clip nothing.
[[nodiscard]] bool is_valid(const PolicyLoss& loss) noexcept;

// The loss summed over targets, in double and in their order; dlogits becomes its gradient times
// `scale`. `logits` and `dlogits`: [tokens, vocabulary]; `batch` has a target of the
// vocabulary for each row, and a valid `policy_loss`. With p the probability of a target by
// softmax(logits), and w its weight, its loss is
//   without `policy`: -w log p; with w = 1, the bits that moe::cross_entropy() gives;
//   with `policy`: w (-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl (1/q - log(1/q) - 1)),
// where r = p / exp(behaviour), A = advantage, and q = p / exp(reference). The first is equation 7
// of PPO, the second equation 4 of GRPO (papers: see PolicyLoss). The gradient is exact: it is 0
// where the min takes a clipped ratio, and that of r A where r lies on a bound.
//
// A target of weight 0 costs nothing, whatever its other values are, and has a gradient of 0. A
// ratio that is too large for a double does no harm where it is clipped or its advantage is 0;
// where it counts (below an advantage of 0) the loss is infinite, and the gradient of no use.
[[nodiscard]] double loss_and_logit_gradients(const MicroBatch& batch, moe::ConstMatrix logits,
                                              float scale, moe::Matrix dlogits);

// out[i] = log softmax(logits row i)[targets[i]], computed in double. `logits`: [targets,
// vocabulary].
void target_log_probabilities(moe::ConstMatrix logits, std::span<const std::uint32_t> targets,
                              std::span<float> out);

}  // namespace wsync::training
