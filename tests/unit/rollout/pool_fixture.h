// Pools over scripted replicas.
#pragma once

#include <algorithm>
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/rollout/scripted_replica.h"
#include "trainer_side/rollout/rollout_pool.h"

namespace wsync::rollout::test {

inline constexpr std::chrono::milliseconds kWaitLimit{60'000};  // more than any test needs
inline constexpr std::chrono::milliseconds kNever{3'600'000};   // of retry: not in this test

[[nodiscard]] inline Version step(std::uint64_t number) { return {.epoch = 1, .step = number}; }

[[nodiscard]] inline PoolOptions options_for(std::vector<std::string> urls) {
  return {.replicas = std::move(urls),
          .groups = 3,
          .answers = 2,
          .max_tokens = 8,
          .seed = 11,
          .deadline = kWaitLimit,
          .retry = std::chrono::milliseconds(1)};
}

[[nodiscard]] inline Task task() { return Task::named("reverse", 3).value(); }

[[nodiscard]] inline std::unique_ptr<RolloutPool> pool_of(PoolOptions options,
                                                          Reward reward = exact_match) {
  auto pool = RolloutPool::create(std::move(options), task(), std::move(reward));
  EXPECT_TRUE(pool) << pool.error().message();
  return pool ? std::move(*pool) : nullptr;
}

// The groups of a step, which have to come.
[[nodiscard]] inline RolloutBatch collected(RolloutPool& pool, std::uint64_t number) {
  auto batch = pool.collect(number, kWaitLimit);
  EXPECT_TRUE(batch) << batch.error().message();
  return batch ? std::move(*batch) : RolloutBatch{};
}

// Prompts and sampling seeds of what was asked; sorted, since replicas are asked several at once.
using Asked = std::vector<std::pair<std::string, std::uint64_t>>;
[[nodiscard]] inline Asked asked_of(const ScriptedReplica& replica) {
  Asked asked;
  for (const nlohmann::json& question : replica.questions())
    asked.emplace_back(prompt_of(question), question.at("seed").get<std::uint64_t>());
  std::sort(asked.begin(), asked.end());
  return asked;
}

[[nodiscard]] inline std::vector<std::string> prompts_of(const RolloutBatch& batch) {
  std::vector<std::string> prompts;
  for (const Group& group : batch.groups) prompts.push_back(group.problem.prompt);
  return prompts;
}
// Those of the problems with these numbers.
[[nodiscard]] inline std::vector<std::string> prompts_of(const PoolOptions& options,
                                                         std::uint64_t first) {
  std::vector<std::string> prompts;
  for (std::uint64_t i = 0; i < options.groups; ++i)
    prompts.push_back(task().problem(options.seed, first + i).prompt);
  return prompts;
}

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, const std::string& sentence) {
  ASSERT_FALSE(result);
  EXPECT_EQ(error_code_name(result.error().code()), error_code_name(code))
      << result.error().message();
  EXPECT_THAT(result.error().message(), testing::HasSubstr(sentence));
}

}  // namespace wsync::rollout::test
