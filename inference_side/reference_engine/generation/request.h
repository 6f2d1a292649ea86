// The request of a client to a generating engine, and its result, token by token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::engine::generation {

using Token = std::uint32_t;

// How the next token is chosen from the logits.
struct Sampling {
  double temperature = 1;  // 0: greedy, the highest logit; of equal logits the lower token
  double top_p = 1;        // (0, 1]: nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751)
  std::optional<std::uint64_t> seed;  // equal seed, weights and tokens give equal outputs
  friend bool operator==(const Sampling&, const Sampling&) = default;
};

inline constexpr std::uint32_t kMaxLogprobs = 20;
inline constexpr std::uint32_t kMaxStops = 16;
inline constexpr std::uint32_t kMaxStopTokens = 256;  // tokens in one stop
inline constexpr std::uint32_t kMaxEndTokens = 16;    // Request::end_tokens

struct Request {
  std::vector<Token> prompt;      // at least one token
  std::uint32_t max_tokens = 16;  // at least 1
  Sampling sampling;
  // Sequences of tokens that end the output and are not part of it. None is empty. The stop that is
  // complete first applies; of several that end at the same token, the longest.
  std::vector<std::vector<Token>> stops;
  // A token that ends the output and is its last token (end of sequence), unless a stop ends with
  // it.
  std::optional<Token> end_token;
  // Further end tokens of this request.
  std::vector<Token> end_tokens;
  std::uint32_t logprobs = 0;  // number of most likely tokens to report at each position
};
// Whether `token` is one of the request's end tokens.
[[nodiscard]] bool ends(const Request& request, Token token) noexcept;
// Returns kInvalidInput, with the HTTP name of the field, its value and the allowed range, if a
// field is invalid, if prompt and output do not fit into `max_positions`, or if a token is not
// below `vocabulary`.
[[nodiscard]] Result<> check_request(const Request& request, std::uint32_t vocabulary,
                                     std::uint32_t max_positions);

struct Likelihood {
  Token token = 0;
  float logprob = 0;  // log softmax of the model's logits, before temperature
  friend bool operator==(const Likelihood&, const Likelihood&) = default;
};

struct GeneratedToken {
  Token token = 0;
  float logprob = 0;
  Version version;                      // version of the weights that computed it
  std::vector<Likelihood> most_likely;  // as many as Request::logprobs, highest first
};

enum class FinishReason : std::uint8_t {
  kStop,    // a stop sequence or the end token
  kLength,  // max_tokens
  kAbort,   // the engine was paused with mode abort, or was stopped
};
[[nodiscard]] const char* name_of(FinishReason reason) noexcept;  // "stop", "length", "abort"

// A run of output tokens [begin, end) that were computed with weights of one version.
struct VersionSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  Version version;
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};
// Adds the next token to the spans of an output.
void extend(std::vector<VersionSpan>& spans, const Version& version);

}  // namespace wsync::engine::generation
