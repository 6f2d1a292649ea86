// Choosing tokens: ties, nuclei, frequencies, seeds, probabilities, and logits that are no numbers.
#include "inference_side/reference_engine/generation/sampler.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <vector>

#include "inference_side/reference_engine/generation/philox.h"

namespace wsync::engine::generation {
namespace {

using Logits = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kDraws = 20000;

Logits logits_of_probabilities(const std::vector<double>& probabilities) {
  Logits logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 3);
  return logits;
}

std::vector<std::uint32_t> frequencies(const Logits& logits, const Sampling& sampling) {
  std::vector<std::uint32_t> counts(logits.size());
  for (std::uint32_t i = 0; i < kDraws; ++i) ++counts[sample(logits, sampling, 0, i)];
  return counts;
}

// Pearson's statistic of kDraws draws.
double chi_square(const std::vector<std::uint32_t>& counts,
                  const std::vector<double>& probabilities) {
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * kDraws;
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}
// A right sampler of 6 tokens (5 degrees of freedom) exceeds it once in a thousand seeds.
constexpr double kChiSquareBound = 20.5;

std::set<Token> drawn_tokens(const Logits& logits, const Sampling& sampling) {
  std::set<Token> tokens;
  for (std::uint32_t i = 0; i < 2000; ++i) tokens.insert(sample(logits, sampling, 0, i));
  return tokens;
}

TEST(Philox, NumbersOfItsAuthors) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, GreedyTakesTheHighestAndOfEqualsTheLower) {
  const Sampling greedy{.temperature = 0};
  EXPECT_EQ(sample(Logits{1, 3, 2}, greedy, 0, 0), 1U);
  EXPECT_EQ(sample(Logits{1, 3, 2, 3}, greedy, 7, 9), 1U);
  EXPECT_EQ(sample(Logits{-0.0F, 0.0F}, greedy, 0, 0), 0U);
  EXPECT_EQ(sample(Logits{5}, greedy, 0, 0), 0U);
}

TEST(Sampler, FrequenciesAreTheProbabilities) {
  const std::vector<double> probabilities{0.4, 0.25, 0.2, 0.1, 0.04, 0.01};
  const Logits logits = logits_of_probabilities(probabilities);
  EXPECT_LT(chi_square(frequencies(logits, {.seed = 1}), probabilities), kChiSquareBound);
  EXPECT_LT(chi_square(frequencies(logits, {.seed = std::uint64_t{1} << 40U}), probabilities),
            kChiSquareBound);
  EXPECT_LT(chi_square(frequencies(logits, {}), probabilities), kChiSquareBound) << "of a stream";
  // The bound sees a sampler that is wrong by two percent of the draws.
  EXPECT_GT(chi_square(frequencies(logits, {.seed = 1}), {0.42, 0.23, 0.2, 0.1, 0.04, 0.01}),
            kChiSquareBound);
}

TEST(Sampler, TemperatureFlattensAndSharpens) {
  const std::vector<double> probabilities{0.4, 0.25, 0.2, 0.1, 0.04, 0.01};
  const Logits logits = logits_of_probabilities(probabilities);
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> tempered;
    double sum = 0;
    for (const double p : probabilities) {
      tempered.push_back(std::pow(p, 1 / temperature));
      sum += tempered.back();
    }
    for (double& p : tempered) p /= sum;
    EXPECT_LT(chi_square(frequencies(logits, {.temperature = temperature, .seed = 2}), tempered),
              kChiSquareBound)
        << temperature;
  }
}

TEST(Sampler, ExtremeTemperaturesAreGreedyAndUniform) {
  const Logits logits{1, 3, 2.5F, -kInf};
  EXPECT_EQ(drawn_tokens(logits, {.temperature = 5e-324, .seed = 1}), (std::set<Token>{1}));
  EXPECT_EQ(drawn_tokens(logits, {.temperature = 1e300, .seed = 1}), (std::set<Token>{0, 1, 2}));
}

TEST(Sampler, ANucleusIsTheFewestTokensThatReachItsProbability) {
  const Logits halves{0, 2, 2, 0};  // 1 and 2 have 0.44 each
  EXPECT_EQ(drawn_tokens(halves, {.top_p = 1e-12, .seed = 1}), (std::set<Token>{1}))
      << "one at least, of equals the lower";
  EXPECT_EQ(drawn_tokens(halves, {.top_p = 0.44, .seed = 1}), (std::set<Token>{1}));
  EXPECT_EQ(drawn_tokens(halves, {.top_p = 0.45, .seed = 1}), (std::set<Token>{1, 2}));
  EXPECT_EQ(drawn_tokens(halves, {.top_p = 0.9, .seed = 1}), (std::set<Token>{0, 1, 2}));
  EXPECT_EQ(drawn_tokens(halves, {.top_p = 1, .seed = 1}), (std::set<Token>{0, 1, 2, 3}));
  // Reached exactly.
  EXPECT_EQ(drawn_tokens(Logits{4, 4}, {.top_p = 0.5, .seed = 1}), (std::set<Token>{0}));
  EXPECT_EQ(drawn_tokens(Logits{4, 4}, {.top_p = std::nextafter(0.5, 1), .seed = 1}),
            (std::set<Token>{0, 1}));
}

TEST(Sampler, ANucleusComesAfterTheTemperature) {
  const Logits logits{2, 1, 0};  // 0.67, 0.24, 0.09; at temperature 4: 0.42, 0.33, 0.25
  EXPECT_EQ(drawn_tokens(logits, {.top_p = 0.6, .seed = 1}), (std::set<Token>{0}));
  EXPECT_EQ(drawn_tokens(logits, {.temperature = 4, .top_p = 0.6, .seed = 1}),
            (std::set<Token>{0, 1}));
}

TEST(Sampler, InsideANucleusTheProportionsStay) {
  const Logits logits = logits_of_probabilities({0.03, 0.3, 0.2, 0.27, 0.05, 0.15});
  const std::vector<std::uint32_t> counts = frequencies(logits, {.top_p = 0.9, .seed = 3});
  EXPECT_EQ(counts[0] + counts[4], 0U);
  EXPECT_LT(chi_square({counts[1], counts[2], counts[3], counts[5]},
                       {0.3 / 0.92, 0.2 / 0.92, 0.27 / 0.92, 0.15 / 0.92}),
            kChiSquareBound);
}

TEST(Sampler, ANucleusOfMoreTokensThanAreSortedFirst) {
  // 1000 equal tokens: the nucleus is the lower part of them.
  const Logits logits(1000, 1.5F);
  const Sampling sampling{.top_p = 0.3, .seed = 4};
  Token highest = 0;
  for (std::uint32_t i = 0; i < kDraws; ++i)
    highest = std::max(highest, sample(logits, sampling, 0, i));
  EXPECT_EQ(highest, 299U);
}

TEST(Sampler, ASeedRepeatsItselfAndNothingElse) {
  const Logits logits(1U << 16U, 0);  // as many equal tokens, so that two draws rarely agree
  std::set<Token> tokens;
  for (std::uint32_t index = 0; index < 20; ++index) {
    const Token token = sample(logits, {.seed = 5}, 1, index);
    EXPECT_EQ(sample(logits, {.seed = 5}, 2, index), token) << "the stream has no part in it";
    EXPECT_EQ(token, philox4x32({index, 0, 0, 0}, {5, 0})[1] >> 16U) << "on every machine";
    tokens.insert(token);
    tokens.insert(sample(logits, {.seed = 6}, 1, index));
    tokens.insert(sample(logits, {.seed = (std::uint64_t{1} << 32U) + 5}, 1, index));
    tokens.insert(sample(logits, {}, 5, index));
    tokens.insert(sample(logits, {}, 6, index));
    EXPECT_EQ(sample(logits, {}, 6, index), sample(logits, {}, 6, index));
  }
  EXPECT_EQ(tokens.size(), 100U);
}

TEST(Sampler, LogprobsAreThoseOfASoftmaxBeforeTemperature) {
  const std::vector<double> probabilities{0.4, 0.25, 0.2, 0.15};
  const Logits logits = logits_of_probabilities(probabilities);
  const std::vector<float> logprobs = logprobs_of(logits, std::vector<Token>{3, 0, 3});
  ASSERT_EQ(logprobs.size(), 3U);
  EXPECT_NEAR(logprobs[0], std::log(0.15), 1e-6);
  EXPECT_NEAR(logprobs[1], std::log(0.4), 1e-6);
  EXPECT_EQ(logprobs[2], logprobs[0]);
}

TEST(Sampler, LogprobsOfLogitsThatFloatsCannotExponentiate) {
  const std::vector<float> logprobs =
      logprobs_of(Logits{1e30F, 1e30F, -1e30F}, std::vector<Token>{0, 1, 2});
  EXPECT_NEAR(logprobs[0], std::log(0.5), 1e-6);
  EXPECT_EQ(logprobs[1], logprobs[0]);
  EXPECT_LT(logprobs[2], -1e30F);
  // 2^17 equal ones: a sum in float would lose some of them.
  EXPECT_FLOAT_EQ(logprobs_of(Logits(1U << 17U, 7), std::vector<Token>{0})[0],
                  static_cast<float>(-17 * std::log(2)));
}

TEST(Sampler, TheMostLikelyComeFirstAndOfEqualsTheLower) {
  const Logits logits{1, 3, 2, 3, kNan};
  const std::vector<Likelihood> likely = most_likely(logits, 3);
  ASSERT_EQ(likely.size(), 3U);
  EXPECT_EQ(likely[0].token, 1U);
  EXPECT_EQ(likely[1].token, 3U);
  EXPECT_EQ(likely[2].token, 2U);
  for (const Likelihood& one : likely)
    EXPECT_EQ(one.logprob, logprobs_of(logits, std::vector<Token>{one.token})[0]);
  EXPECT_EQ(most_likely(logits, 100).size(), 5U) << "all that there are";
  EXPECT_EQ(most_likely(logits, 100)[4].token, 4U);
  EXPECT_TRUE(most_likely(logits, 0).empty());
}

TEST(Sampler, NanIsNeverChosenWhileThereIsANumber) {
  const Logits logits{kNan, 1, kNan, -kInf, 1.5F};
  EXPECT_EQ(sample(logits, {.temperature = 0}, 0, 0), 4U);
  EXPECT_EQ(drawn_tokens(logits, {.seed = 1}), (std::set<Token>{1, 4}));
  EXPECT_EQ(drawn_tokens(logits, {.top_p = 0.99, .seed = 1}), (std::set<Token>{1, 4}));
  const std::vector<float> logprobs = logprobs_of(logits, std::vector<Token>{0, 1, 3});
  EXPECT_EQ(logprobs[0], -kInf);
  EXPECT_NEAR(logprobs[1], -std::log(1 + std::exp(0.5)), 1e-6);
  EXPECT_EQ(logprobs[2], -kInf);
}

TEST(Sampler, WithoutAnyNumberTokenZeroIsChosen) {
  for (const Logits& logits : {Logits{kNan, kNan}, Logits{-kInf, -kInf, kNan}}) {
    for (const double temperature : {0.0, 1.0})
      for (const double top_p : {0.5, 1.0})
        EXPECT_EQ(drawn_tokens(logits, {.temperature = temperature, .top_p = top_p, .seed = 1}),
                  (std::set<Token>{0}));
    EXPECT_EQ(logprobs_of(logits, std::vector<Token>{0, 1}), (std::vector<float>{0, -kInf}));
  }
}

TEST(Sampler, InfinitiesShareAllOfTheProbability) {
  const Logits logits{1e38F, kInf, kNan, kInf};
  EXPECT_EQ(sample(logits, {.temperature = 0}, 0, 0), 1U);
  EXPECT_EQ(drawn_tokens(logits, {.seed = 1}), (std::set<Token>{1, 3}));
  EXPECT_EQ(drawn_tokens(logits, {.top_p = 0.5, .seed = 1}), (std::set<Token>{1}));
  const std::vector<float> logprobs = logprobs_of(logits, std::vector<Token>{0, 1, 3});
  EXPECT_EQ(logprobs[0], -kInf);
  EXPECT_NEAR(logprobs[1], std::log(0.5), 1e-6);
  EXPECT_EQ(logprobs[2], logprobs[1]);
}

}  // namespace
}  // namespace wsync::engine::generation
