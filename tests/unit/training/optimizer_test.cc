// AdamW against its formula in double, and that a cut changes no bit.
#include "trainer_side/training/optimizer.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

namespace wsync::training {
namespace {

// A fixed, uneven value in (-1, 1).
float uneven(std::size_t i, std::size_t salt) {
  return static_cast<float>(std::sin(static_cast<double>(i * 37 + salt * 101 + 1) * 12.9898));
}

struct Elements {
  explicit Elements(std::size_t count) : weights(count), mean(count), variance(count) {
    for (std::size_t i = 0; i < count; ++i) weights[i] = uneven(i, 0);
  }
  // Steps elements [from, to).
  void step(const OptimizerOptions& options, std::uint64_t number, bool decays, float factor,
            std::size_t from, std::size_t to) {
    std::vector<float> gradient(to - from);
    for (std::size_t i = from; i < to; ++i) gradient[i - from] = uneven(i, number);
    adamw_step(options, number, decays, factor, gradient,
               std::span(weights).subspan(from, to - from),
               {.mean = std::span(mean).subspan(from, to - from),
                .variance = std::span(variance).subspan(from, to - from)});
  }
  friend bool operator==(const Elements&, const Elements&) = default;

  std::vector<float> weights, mean, variance;
};

TEST(AdamW, FollowsTheFormula) {
  const OptimizerOptions options{.warmup_steps = 3, .total_steps = 8};
  constexpr std::size_t kCount = 37;
  constexpr double kFactor = 0.25;
  for (const bool decays : {true, false}) {
    Elements elements(kCount);
    std::vector<double> weights(elements.weights.begin(), elements.weights.end());
    std::vector<double> mean(kCount), variance(kCount);
    for (std::uint64_t step = 1; step <= 12; ++step) {
      elements.step(options, step, decays, static_cast<float>(kFactor), 0, kCount);
      const double rate = learning_rate_of(options, step);
      double power1 = 1, power2 = 1;
      for (std::uint64_t i = 0; i < step; ++i) power1 *= options.beta1, power2 *= options.beta2;
      for (std::size_t i = 0; i < kCount; ++i) {
        const double g = static_cast<double>(uneven(i, step)) * kFactor;
        mean[i] = options.beta1 * mean[i] + (1 - options.beta1) * g;
        variance[i] = options.beta2 * variance[i] + (1 - options.beta2) * g * g;
        if (decays) weights[i] -= rate * options.weight_decay * weights[i];
        weights[i] -= rate * (mean[i] / (1 - power1)) /
                      (std::sqrt(variance[i] / (1 - power2)) + options.epsilon);
        ASSERT_NEAR(elements.weights[i], weights[i], 2e-6) << "step " << step << " element " << i;
      }
    }
  }
}

// Both means begin at zero; corrected for it, their quotient is the gradient's sign.
TEST(AdamW, TheFirstStepIsTheRateWhateverTheGradient) {
  const OptimizerOptions options{.learning_rate = 0.5, .warmup_steps = 0};
  for (const float gradient : {1e-3F, -20.0F, 3e4F}) {
    float weight = 2, mean = 0, variance = 0;
    adamw_step(options, 1, false, 1, {&gradient, 1}, {&weight, 1}, {{&mean, 1}, {&variance, 1}});
    EXPECT_NEAR(weight, 2 - std::copysign(learning_rate_of(options, 1), gradient), 1e-5);
  }
}

TEST(AdamW, ACutChangesNoBit) {
  const OptimizerOptions options;
  constexpr std::size_t kCount = 131;
  Elements whole(kCount);
  for (std::uint64_t step = 1; step <= 3; ++step) whole.step(options, step, true, 0.7F, 0, kCount);
  for (std::size_t cut = 0; cut <= kCount; ++cut) {
    Elements parts(kCount);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      parts.step(options, step, true, 0.7F, cut, kCount);
      parts.step(options, step, true, 0.7F, 0, cut);
    }
    ASSERT_TRUE(parts == whole) << "cut at " << cut;
  }
}

TEST(LearningRate, WarmsUpAndFallsAlongACosine) {
  const OptimizerOptions options{
      .learning_rate = 0.8, .final_learning_rate = 0.2, .warmup_steps = 4, .total_steps = 12};
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 3), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 4), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 6), 0.5 + 0.3 * std::sqrt(0.5));  // a quarter
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 8), 0.5);                         // half way
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 12), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 1'000'000), 0.2);
}

TEST(LearningRate, WithoutWarmUpAndShorterThanIt) {
  OptimizerOptions options{.learning_rate = 1, .warmup_steps = 0, .total_steps = 2};
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 1), (1 + options.final_learning_rate) / 2);
  options = {.learning_rate = 1, .warmup_steps = 10, .total_steps = 5};
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 5), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate_of(options, 11), options.final_learning_rate);
}

TEST(Norm, IsOfAllElements) {
  EXPECT_EQ(square_sum(std::vector<float>{3, -4, 12}), 169);
  EXPECT_EQ(square_sum({}), 0);
  EXPECT_EQ(norm_of(std::vector<double>{9, 16, 144}), 13);
  EXPECT_EQ(norm_of({}), 0);
  // Squares beyond float's range.
  EXPECT_DOUBLE_EQ(norm_of(std::vector{square_sum(std::vector<float>{3e30F, 4e30F})}),
                   std::hypot(static_cast<double>(3e30F), static_cast<double>(4e30F)));
}

TEST(Clip, OnlyWhatIsLonger) {
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_FLOAT_EQ(clip_factor(4, 1), 0.25F);
  EXPECT_FLOAT_EQ(clip_factor(4, 2), 0.5F);
  EXPECT_EQ(clip_factor(1e9, 0), 1);
}

TEST(OptimizerOptions, WhatCannotBeIsNamed) {
  const auto why = [](const OptimizerOptions& options) {
    const Result<> checked = check_optimizer(options);
    return checked ? std::string("taken") : checked.error().message();
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(why({}), "taken");
  EXPECT_EQ(why({.final_learning_rate = 0, .beta1 = 0, .weight_decay = 0, .clip_norm = 0}),
            "taken");
  EXPECT_EQ(why({.learning_rate = 0}),
            "optimizer: learning_rate: expected a number above 0, found 0");
  EXPECT_EQ(why({.learning_rate = 1, .final_learning_rate = 2}),
            "optimizer: final_learning_rate: expected a number from 0 to learning_rate, found 2");
  EXPECT_EQ(why({.beta1 = 1}), "optimizer: beta1: expected a number from 0, below 1, found 1");
  EXPECT_EQ(why({.beta2 = -0.5}),
            "optimizer: beta2: expected a number from 0, below 1, found -0.5");
  EXPECT_EQ(why({.weight_decay = -1}), "optimizer: weight_decay: expected 0 or more, found -1");
  EXPECT_EQ(why({.clip_norm = -1}),
            "optimizer: clip_norm: expected 0 (no clipping) or more, found -1");
  EXPECT_NE(why({.epsilon = 0}).find("epsilon"), std::string::npos);
  EXPECT_NE(why({.learning_rate = kNan}).find("learning_rate"), std::string::npos);
  EXPECT_NE(why({.final_learning_rate = kNan}).find("final_learning_rate"), std::string::npos);
  EXPECT_NE(why({.beta1 = kNan}).find("beta1"), std::string::npos);
  EXPECT_NE(why({.epsilon = kNan}).find("epsilon"), std::string::npos);
  EXPECT_NE(why({.weight_decay = kNan}).find("weight_decay"), std::string::npos);
  EXPECT_NE(why({.clip_norm = kNan}).find("clip_norm"), std::string::npos);
  EXPECT_NE(why({.weight_decay = 1e300}).find("weight_decay"), std::string::npos);
}

}  // namespace
}  // namespace wsync::training
