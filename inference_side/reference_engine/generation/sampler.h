// Choosing the next token from logits. Pure; the same inputs give the same token on every machine
// with the same math library.
//
// Logits that are no finite numbers: NaN counts as minus infinity; tokens at plus infinity share
// all of the probability; where every logit is minus infinity, token 0 has it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"

namespace wsync::engine::generation {

// Log softmax of each of these tokens, computed in double; minus infinity for one that is
// impossible.
[[nodiscard]] std::vector<float> logprobs_of(std::span<const float> logits,
                                             std::span<const Token> tokens);
// The `count` most likely (all, if there are fewer), the highest first; of two that are equal the
// lower token first.
[[nodiscard]] std::vector<Likelihood> most_likely(std::span<const float> logits,
                                                  std::uint32_t count);
// The token for the `index`-th output of a request, drawn by Philox (philox.h) at counter `index`:
// a seed gives the same choice at the same index whatever happened before. Without one `stream`
// stands in for it, a number that no other request of this process has.
[[nodiscard]] Token sample(std::span<const float> logits, const Sampling& sampling,
                           std::uint64_t stream, std::uint32_t index);

}  // namespace wsync::engine::generation
