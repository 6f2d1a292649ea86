#include "trainer_side/rollout/task.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

namespace wsync::rollout {
namespace {

using testing::HasSubstr;

struct Asked {
  std::string name;
  std::string digits;
};
// "reverse 4831=" in its parts.
Asked parts_of(const std::string& prompt) {
  const std::size_t space = prompt.find(' ');
  EXPECT_NE(space, std::string::npos) << prompt;
  EXPECT_TRUE(prompt.ends_with('=')) << prompt;
  return {.name = prompt.substr(0, space),
          .digits = prompt.substr(space + 1, prompt.size() - space - 2)};
}

TEST(Task, EveryAnswerIsRight) {
  for (const std::string name : {"reverse", "sort"}) {
    for (const std::uint32_t digits : {1U, 4U, kTaskDigits}) {
      const Task task = Task::named(name, digits).value();
      for (std::uint64_t number = 0; number < 200; ++number) {
        const Problem problem = task.problem(3, number);
        const Asked asked = parts_of(problem.prompt);
        EXPECT_EQ(asked.name, name);
        ASSERT_EQ(asked.digits.size(), digits);
        EXPECT_TRUE(std::all_of(asked.digits.begin(), asked.digits.end(),
                                [](char c) { return c >= '0' && c <= '9'; }));
        std::string answer = asked.digits;
        if (name == "reverse")
          answer.assign(asked.digits.rbegin(), asked.digits.rend());
        else
          std::sort(answer.begin(), answer.end());
        EXPECT_EQ(problem.answer, answer);
        EXPECT_EQ(problem.prompt.size(), task.prompt_bytes());
        EXPECT_EQ(problem.answer.size(), task.answer_bytes());
        EXPECT_EQ(exact_match(problem, answer), 1);
      }
    }
  }
}

TEST(Task, AProblemIsTheSameWheneverItIsAskedFor) {
  const Task task = Task::named("reverse", 8).value();
  const Problem problem = task.problem(7, 5);
  (void)task.problem(7, 6);
  EXPECT_EQ(task.problem(7, 5), problem);
  EXPECT_EQ(Task::named("reverse", 8)->problem(7, 5), problem);
  EXPECT_NE(task.problem(8, 5), problem);
  EXPECT_NE(task.problem(5, 7), problem);
  std::set<std::string> different;
  for (std::uint64_t number = 0; number < 1000; ++number)
    different.insert(task.problem(7, number).prompt);
  EXPECT_GT(different.size(), 990U);
}

TEST(Task, OnlyTheAnswerAndNothingMoreIsWorthSomething) {
  const Problem problem{.prompt = "reverse 12=", .answer = "21"};
  EXPECT_EQ(exact_match(problem, "21"), 1);
  for (const std::string_view wrong : {"", "2", "12", "211", "21 ", "21\n"})
    EXPECT_EQ(exact_match(problem, wrong), 0) << wrong;
}

TEST(Task, WhatIsNoTaskIsNamed) {
  const auto why = [](std::string_view name, std::uint32_t digits) {
    const auto task = Task::named(name, digits);
    EXPECT_FALSE(task);
    if (task) return std::string();
    EXPECT_EQ(task.error().code(), ErrorCode::kInvalidInput);
    return task.error().message();
  };
  EXPECT_THAT(why("multiply", 4), HasSubstr("no task 'multiply'; expected reverse or sort"));
  EXPECT_THAT(why("", 4), HasSubstr("no task ''"));
  EXPECT_THAT(why("sort", 0), HasSubstr("'sort': expected 1 to 32 digits, found 0"));
  EXPECT_THAT(why("sort", 33), HasSubstr("found 33"));
}

}  // namespace
}  // namespace wsync::rollout
