#include "inference_side/reference_engine/generation/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "inference_side/reference_engine/generation/philox.h"
#include "shared/base/check.h"

namespace wsync::engine::generation {
namespace {

constexpr double kInfiniteLogit = std::numeric_limits<double>::infinity();
// Number of candidates that are sorted first. Most nuclei are smaller.
constexpr std::size_t kFirstCandidates = 64;

// Converts a raw logit. NaN becomes minus infinity.
double logit_of(float raw) { return std::isnan(raw) ? -kInfiniteLogit : static_cast<double>(raw); }

double highest_logit(std::span<const float> logits) {
  double highest = -kInfiniteLogit;
  for (const float raw : logits) highest = std::max(highest, logit_of(raw));
  return highest;
}

// log(softmax) up to a constant, with the most likely token at 0. This function implements the
// rules for logits that are not finite (sampler.h).
double relative_logit(double logit, double highest, Token token) {
  if (highest == -kInfiniteLogit) return token == 0 ? 0 : -kInfiniteLogit;
  if (highest == kInfiniteLogit) return logit == kInfiniteLogit ? 0 : -kInfiniteLogit;
  return logit - highest;
}

// Log-probabilities of one row of logits.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits)
      : logits_(logits), highest_(highest_logit(logits)) {
    double sum = 0;
    for (Token token = 0; token < logits.size(); ++token) sum += std::exp(relative(token));
    log_sum_ = std::log(sum);
  }
  [[nodiscard]] float of(Token token) const {
    return static_cast<float>(relative(token) - log_sum_);
  }

 private:
  [[nodiscard]] double relative(Token token) const {
    return relative_logit(logit_of(logits_[token]), highest_, token);
  }
  std::span<const float> logits_;
  double highest_;
  double log_sum_ = 0;
};

Token greedy_choice(std::span<const float> logits) {
  Token best = 0;
  for (Token token = 1; token < logits.size(); ++token)
    if (logit_of(logits[token]) > logit_of(logits[best])) best = token;
  return best;
}

// Unnormalised probabilities at a temperature above 0. That of the most likely token is 1.
std::vector<double> weights_at(std::span<const float> logits, double temperature) {
  const double highest = highest_logit(logits);
  std::vector<double> weights(logits.size());
  for (Token token = 0; token < logits.size(); ++token)
    weights[token] =
        std::exp(relative_logit(logit_of(logits[token]), highest, token) / temperature);
  return weights;
}

std::vector<Token> all_tokens(std::size_t vocabulary) {
  std::vector<Token> tokens(vocabulary);
  std::iota(tokens.begin(), tokens.end(), Token{0});
  return tokens;
}

// The nucleus: the smallest number of most likely tokens whose share of the total weight reaches
// `top_p`.
std::vector<Token> nucleus_of(std::span<const double> weights, double top_p) {
  std::vector<Token> tokens = all_tokens(weights.size());
  if (top_p == 1) return tokens;
  const double wanted = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto is_more_likely = [&](Token a, Token b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  double sum = 0;
  std::size_t sorted = 0;
  for (std::size_t more = kFirstCandidates; sorted < tokens.size(); more *= 8) {
    const std::size_t end = std::min(sorted + more, tokens.size());
    const auto at = [&](std::size_t i) { return tokens.begin() + static_cast<std::ptrdiff_t>(i); };
    std::partial_sort(at(sorted), at(end), tokens.end(), is_more_likely);
    for (; sorted < end; ++sorted) {
      sum += weights[tokens[sorted]];
      if (sum >= wanted) {
        tokens.resize(sorted + 1);
        return tokens;
      }
    }
  }
  return tokens;  // top_p is close to 1 and rounding kept the sum below it
}

// Uniform in [0, 1), with 53 random bits.
double uniform_draw(const Sampling& sampling, std::uint64_t stream, std::uint32_t index) {
  const std::uint64_t key = sampling.seed.value_or(stream);
  // A seed and a stream with the same value must select different generators.
  const std::uint32_t kind = sampling.seed ? 0 : 1;
  const auto numbers = philox4x32({index, kind, 0, 0}, {static_cast<std::uint32_t>(key),
                                                        static_cast<std::uint32_t>(key >> 32U)});
  const std::uint64_t bits = (std::uint64_t{numbers[1]} << 32U) | numbers[0];
  return std::ldexp(static_cast<double>(bits >> 11U), -53);
}

}  // namespace

std::vector<float> logprobs_of(std::span<const float> logits, std::span<const Token> tokens) {
  const LogSoftmax softmax(logits);
  std::vector<float> logprobs;
  logprobs.reserve(tokens.size());
  for (const Token token : tokens) {
    WSYNC_CHECK(token < logits.size(), "a token is one of the vocabulary");
    logprobs.push_back(softmax.of(token));
  }
  return logprobs;
}

std::vector<Likelihood> most_likely(std::span<const float> logits, std::uint32_t count) {
  const LogSoftmax softmax(logits);
  std::vector<Token> tokens = all_tokens(logits.size());
  const auto end = tokens.begin() + std::min<std::ptrdiff_t>(count, std::ssize(tokens));
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](Token a, Token b) {
    const double of_a = logit_of(logits[a]);
    const double of_b = logit_of(logits[b]);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  std::vector<Likelihood> likelihoods;
  likelihoods.reserve(static_cast<std::size_t>(end - tokens.begin()));
  std::transform(tokens.begin(), end, std::back_inserter(likelihoods), [&](Token token) {
    return Likelihood{.token = token, .logprob = softmax.of(token)};
  });
  return likelihoods;
}

Token sample(std::span<const float> logits, const Sampling& sampling, std::uint64_t stream,
             std::uint32_t index) {
  WSYNC_CHECK(!logits.empty(), "a vocabulary has at least one token");
  if (sampling.temperature == 0) return greedy_choice(logits);
  const std::vector<double> weights = weights_at(logits, sampling.temperature);
  const std::vector<Token> candidates = nucleus_of(weights, sampling.top_p);
  double sum = 0;
  for (const Token token : candidates) sum += weights[token];
  const double drawn = uniform_draw(sampling, stream, index) * sum;
  double passed = 0;
  Token chosen = candidates.front();
  for (const Token token : candidates) {
    if (weights[token] == 0) continue;
    chosen = token;  // if rounding makes the draw reach the total, the last token stays
    passed += weights[token];
    if (passed > drawn) break;
  }
  return chosen;
}

}  // namespace wsync::engine::generation
