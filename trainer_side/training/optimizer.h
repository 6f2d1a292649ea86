// AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2) as torch.optim.AdamW has it,
// clipping by the global norm of the gradients, and a learning rate that warms up and decays.
//
// float32 element by element, norms in double: the same bits however tensors are cut over ranks.
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/base/error.h"

namespace wsync::training {

struct OptimizerOptions {
  double learning_rate = 3e-3;        // the highest
  double final_learning_rate = 3e-4;  // from total_steps on
  std::uint64_t warmup_steps = 10;    // linear from 0: step 1 has learning_rate / warmup_steps
  std::uint64_t total_steps = 100;    // half a cosine from the end of the warm-up to here
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // of all gradients together; 0 = no clipping
  friend bool operator==(const OptimizerOptions&, const OptimizerOptions&) = default;
};
// kInvalidInput names the field, what it may be and what it is.
[[nodiscard]] Result<> check_optimizer(const OptimizerOptions& options);

// Of a step, counted from 1. A run that is shorter than its warm-up ends inside it.
[[nodiscard]] double learning_rate_of(const OptimizerOptions& options, std::uint64_t step);

// Elements of the blocks in which squares are summed: block b of a tensor is its elements
// [b * kNormBlock, (b + 1) * kNormBlock), whatever rank holds them.
inline constexpr std::size_t kNormBlock = 4096;
// In double, in order.
[[nodiscard]] double square_sum(std::span<const float> block);
// The root of the sum in order: blocks of a tensor ascending, tensors in the order of the model.
[[nodiscard]] double norm_of(std::span<const double> block_sums);
// What gradients of this norm are multiplied by, as torch.nn.utils.clip_grad_norm_ has it: at most
// 1, and 1 without clipping. The norm must be finite: what is not, the caller tells and stops.
[[nodiscard]] float clip_factor(double norm, double clip_norm);

// Of some elements: running means of the gradient and of its square, zero before step 1.
struct AdamState {
  std::span<float> mean;
  std::span<float> variance;
};
// One step, counted from 1, on some elements; all spans have the same size. `decays`: matrices do,
// norms do not. The gradient is multiplied by `gradient_factor` first.
void adamw_step(const OptimizerOptions& options, std::uint64_t step, bool decays,
                float gradient_factor, std::span<const float> gradient, std::span<float> weights,
                AdamState state);

}  // namespace wsync::training
