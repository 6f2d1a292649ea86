// Chooses the next token from logits. Pure: the same inputs give the same token on every machine
// with the same math library.
//
// Logits that are not finite: NaN counts as minus infinity. Tokens at plus infinity share the whole
// probability. If every logit is minus infinity, token 0 has the whole probability.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"

namespace wsync::engine::generation {

// Log softmax of each of these tokens, computed in double. It is minus infinity for an impossible
// token.
[[nodiscard]] std::vector<float> logprobs_of(std::span<const float> logits,
                                             std::span<const Token> tokens);
// The `count` most likely tokens (all tokens if there are fewer), highest first. Of two equal ones
// the lower token comes first.
[[nodiscard]] std::vector<Likelihood> most_likely(std::span<const float> logits,
                                                  std::uint32_t count);
// Chooses the token for output position `index` of a request, with the Philox number (philox.h) of
// counter `index`. A seed therefore gives the same choice at the same index, regardless of earlier
// draws. A request without a seed uses `stream`, a number that no other request of this process
// has.
[[nodiscard]] Token sample(std::span<const float> logits, const Sampling& sampling,
                           std::uint64_t stream, std::uint32_t index);

}  // namespace wsync::engine::generation
