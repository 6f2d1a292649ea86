// SchedulerFixture: a scheduler with a model (shadow_model.h), and what it has told of each
// request.
#pragma once

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/reference_engine/generation/scheduler.h"
#include "tests/unit/reference_engine/generation/shadow_model.h"

namespace wsync::engine::generation {

inline constexpr Version kFirst{.epoch = 1, .step = 1};
inline constexpr Version kSecond{.epoch = 1, .step = 2};

[[nodiscard]] inline SchedulerOptions small_options() {
  return {.vocabulary = 10,
          .max_positions = 64,
          .blocks = 16,
          .block_tokens = 4,
          .max_step_tokens = 8,
          .max_sequences = 4,
          .max_waiting = 8};
}

[[nodiscard]] inline std::vector<Token> counting(std::size_t length) {
  std::vector<Token> tokens(length);
  for (std::size_t i = 0; i < length; ++i) tokens[i] = static_cast<Token>(i % 10);
  return tokens;
}

[[nodiscard]] inline Request greedy(std::vector<Token> prompt, std::uint32_t max_tokens) {
  return {.prompt = std::move(prompt),
          .max_tokens = max_tokens,
          .sampling = {.temperature = 0},
          .stops = {},
          .end_token = {}};
}

// What a greedy request gives, computed alone.
[[nodiscard]] inline std::vector<Token> alone(std::vector<Token> tokens, std::uint32_t max_tokens,
                                              const Version& version) {
  std::vector<Token> output;
  for (std::uint32_t i = 0; i < max_tokens; ++i) {
    const std::vector<float> logits = shadow_logits(history_of(tokens), version, 10);
    output.push_back(
        static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    tokens.push_back(output.back());
  }
  return output;
}

// [first position, tokens] of each slice.
[[nodiscard]] inline std::vector<std::pair<std::uint32_t, std::size_t>> shape(const Batch& batch) {
  std::vector<std::pair<std::uint32_t, std::size_t>> slices;
  for (const SequenceSlice& slice : batch.slices)
    slices.emplace_back(slice.first_position, slice.tokens.size());
  return slices;
}

struct Told {
  std::vector<Token> tokens;
  std::vector<VersionSpan> spans;
  std::optional<FinishReason> finished;
};

// A scheduler with a model, and what has been told of each request.
class SchedulerFixture : public ::testing::Test {
 protected:
  void use(const SchedulerOptions& options) {
    options_ = options;
    scheduler_ = std::make_unique<Scheduler>(options);
    model_ = std::make_unique<ShadowModel>(options);
  }
  RequestId add(Request request) {
    const Result<RequestId> id = scheduler_->add(std::move(request));
    EXPECT_TRUE(id.has_value()) << id.error().message();
    return id.value_or(0);
  }
  std::string add_refusal(Request request, ErrorCode code) {
    const Result<RequestId> id = scheduler_->add(std::move(request));
    if (id) return "not refused";
    EXPECT_EQ(id.error().code(), code);
    return id.error().message();
  }
  void note(const std::vector<Progress>& news) {
    for (const Progress& progress : news) {
      Told& told = told_[progress.id];
      EXPECT_FALSE(told.finished) << "told after its end";
      for (const GeneratedToken& token : progress.tokens) {
        told.tokens.push_back(token.token);
        extend(told.spans, token.version);
      }
      told.finished = progress.finished;
    }
  }
  Batch compute(const Version& version = kFirst) {
    Batch batch = scheduler_->plan();
    const std::vector<float> logits = model_->forward(batch, version);
    note(scheduler_->take(version, {logits, logits.size() / options_.vocabulary,
                                    logits.empty() ? 0 : options_.vocabulary}));
    return batch;
  }
  void compute_all(const Version& version = kFirst) {
    for (int steps = 0; !scheduler_->idle(); ++steps) {
      ASSERT_LT(steps, 1000) << "it comes to no end";
      compute(version);
    }
  }
  // One step of one sequence whose next token is `token`.
  std::vector<Progress> choose(Token token) {
    const Batch batch = scheduler_->plan();
    EXPECT_EQ(batch.slices.size(), 1U);
    std::vector<float> logits(options_.vocabulary);
    logits[token] = 1;
    return scheduler_->take(kFirst, {logits, 1, logits.size()});
  }
  // The tokens that are told at each step while these are chosen.
  std::vector<std::vector<Token>> told_while(const std::vector<Token>& chosen) {
    std::vector<std::vector<Token>> told;
    for (const Token token : chosen) {
      const std::vector<Progress> news = choose(token);
      told.emplace_back();
      for (const Progress& progress : news) {
        for (const GeneratedToken& one : progress.tokens) told.back().push_back(one.token);
        last_finished_ = progress.finished;
      }
    }
    return told;
  }

  SchedulerOptions options_ = small_options();
  std::unique_ptr<Scheduler> scheduler_ = std::make_unique<Scheduler>(options_);
  std::unique_ptr<ShadowModel> model_ = std::make_unique<ShadowModel>(options_);
  std::map<RequestId, Told> told_;
  std::optional<FinishReason> last_finished_;
};

}  // namespace wsync::engine::generation
