// What is asked of a generating engine, and what it gives back, token by token.
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
  double temperature = 1;  // 0: greedy, the highest logit; of two that are equal the lower token
  double top_p = 1;        // (0, 1]: nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751)
  std::optional<std::uint64_t> seed;  // the same seed, weights and tokens give the same tokens
  friend bool operator==(const Sampling&, const Sampling&) = default;
};

inline constexpr std::uint32_t kMaxLogprobs = 20;
inline constexpr std::uint32_t kMaxStops = 16;
inline constexpr std::uint32_t kMaxStopTokens = 256;  // of one
inline constexpr std::uint32_t kMaxEndTokens = 16;    // Request::end_tokens

struct Request {
  std::vector<Token> prompt;      // one token at least
  std::uint32_t max_tokens = 16;  // one at least
  Sampling sampling;
  // Sequences of tokens that end the output and are not part of it; none is empty. The first that
  // is complete counts; of several that are complete at the same token the longest.
  std::vector<std::vector<Token>> stops;
  // A token that ends the output and is its last one (end of sequence), unless a stop ends with it.
  std::optional<Token> end_token;
  // More of the kind, of this request's own.
  std::vector<Token> end_tokens;
  std::uint32_t logprobs = 0;  // that many of the most likely tokens are told at each place
};
// Whether the token is one of its end tokens.
[[nodiscard]] bool ends(const Request& request, Token token) noexcept;
// kInvalidInput names the field as HTTP has it, what it is and what is allowed. A prompt and its
// output fit into `max_positions`; tokens are below `vocabulary`.
[[nodiscard]] Result<> check_request(const Request& request, std::uint32_t vocabulary,
                                     std::uint32_t max_positions);

struct Likelihood {
  Token token = 0;
  float logprob = 0;  // log softmax of the logits as the model gave them, before temperature
  friend bool operator==(const Likelihood&, const Likelihood&) = default;
};

struct GeneratedToken {
  Token token = 0;
  float logprob = 0;
  Version version;                      // of the weights of the step that computed it
  std::vector<Likelihood> most_likely;  // Request::logprobs of them, the highest first
};

enum class FinishReason : std::uint8_t {
  kStop,    // a stop sequence or the end token
  kLength,  // max_tokens
  kAbort,   // the engine was paused with mode abort, or ended
};
[[nodiscard]] const char* name_of(FinishReason reason) noexcept;  // "stop", "length", "abort"

// A run of output tokens that weights of one version computed: tokens [begin, end).
struct VersionSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  Version version;
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};
// Adds one more token to the spans of an output.
void extend(std::vector<VersionSpan>& spans, const Version& version);

}  // namespace wsync::engine::generation
