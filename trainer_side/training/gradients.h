// The backward operators of the reference model, in float32. Each is the derivative of the operator
// of the same name in shared/moe/operators.h. Input gradients and weight gradients are separate
// functions, so that weight gradients can be delayed.
//
// The prefix `d` means the gradient of the loss by that value. Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "shared/moe/matrix.h"
#include "shared/moe/operators.h"

namespace wsync::training {

// dx (=|+=) the gradient through y = x * inverse_rms * weight.
void rms_norm_input_gradient(moe::ConstMatrix dy, moe::ConstMatrix x, std::span<const float> weight,
                             std::span<const float> inverse_rms, moe::Matrix dx, moe::Into into);
// dweight += the sum over rows, in row order.
void rms_norm_weight_gradient(moe::ConstMatrix dy, moe::ConstMatrix x,
                              std::span<const float> inverse_rms, std::span<float> dweight);

// Overwrites dq, dk and dv.
void attention_gradient(const moe::AttentionShape& shape, moe::ConstMatrix dout, moe::ConstMatrix q,
                        moe::ConstMatrix k, moe::ConstMatrix v, moe::ConstMatrix probabilities,
                        moe::Matrix dq, moe::Matrix dk, moe::Matrix dv);

// Computes the gradient of the logits [tokens, experts] from that of the chosen weights [tokens *
// experts_per_token]. The choice itself has no gradient.
void route_gradient(const moe::Routing& routing, std::span<const float> dweights, bool normalise,
                    moe::Matrix dlogits);

void swiglu_gradient(moe::ConstMatrix dout, moe::ConstMatrix gate, moe::ConstMatrix up,
                     moe::Matrix dgate, moe::Matrix dup);

// Row tokens[i] of dtable += row i of dout, in the order of i.
void embed_gradient(moe::ConstMatrix dout, std::span<const std::uint32_t> tokens,
                    moe::Matrix dtable);

}  // namespace wsync::training
