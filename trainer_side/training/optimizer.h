// AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2) as in torch.optim.AdamW,
// clipping by the global norm of the gradients, and a learning rate with warm-up and decay.
//
// Elements are computed in float32, norms in double. The bits do not depend on how tensors are cut
// over ranks. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/base/error.h"

namespace wsync::training {

struct OptimizerOptions {
  double learning_rate = 3e-3;        // the maximum
  double final_learning_rate = 3e-4;  // from total_steps on
  std::uint64_t warmup_steps = 10;    // linear from 0: step 1 has learning_rate / warmup_steps
  std::uint64_t total_steps = 100;    // end of the half cosine that begins after the warm-up
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // norm of all gradients together; 0 = no clipping
  friend bool operator==(const OptimizerOptions&, const OptimizerOptions&) = default;
};
// Returns kInvalidInput with the field, its allowed values and its value.
[[nodiscard]] Result<> check_optimizer(const OptimizerOptions& options);

// Learning rate of a step, counted from 1. A run that is shorter than its warm-up ends inside it.
[[nodiscard]] double learning_rate_of(const OptimizerOptions& options, std::uint64_t step);

// Number of elements in a block for sums of squares. Block b of a tensor is its elements [b *
// kNormBlock, (b + 1) * kNormBlock), whichever rank holds them.
inline constexpr std::size_t kNormBlock = 4096;
// Sum of squares, in double and in order.
[[nodiscard]] double square_sum(std::span<const float> block);
// Square root of the sum of the blocks, in order: blocks of a tensor ascending, tensors in the
// order of the model.
[[nodiscard]] double norm_of(std::span<const double> block_sums);
// Returns the factor for gradients with this norm, as torch.nn.utils.clip_grad_norm_ computes it:
// at most 1, and 1 without clipping. The norm must be finite; the caller reports a norm that is
// not.
[[nodiscard]] float clip_factor(double norm, double clip_norm);

// Running means of the gradient and of its square; zero before step 1.
struct AdamState {
  std::span<float> mean;
  std::span<float> variance;
};
// Updates some elements in one step, counted from 1. All spans have the same size. `decays` is true
// for matrices and false for norms. The gradient is first multiplied by `gradient_factor`.
void adamw_step(const OptimizerOptions& options, std::uint64_t step, bool decays,
                float gradient_factor, std::span<const float> gradient, std::span<float> weights,
                AdamState state);

}  // namespace wsync::training
