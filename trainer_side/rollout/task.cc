#include "trainer_side/rollout/task.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/weights/json_text.h"
#include "trainer_side/training/random.h"

namespace wsync::rollout {
namespace {

constexpr std::string_view kReverseName = "reverse";
constexpr std::string_view kSortName = "sort";
constexpr char kAfterName = ' ';
constexpr char kBeforeAnswer = '=';

std::string random_digits(std::uint64_t seed, std::uint64_t number, std::uint32_t count) {
  using training::Random;
  Random random(Random(Random(seed).next() ^ number).next());
  std::string digits;
  for (std::uint32_t i = 0; i < count; ++i) digits += static_cast<char>('0' + random.next() % 10);
  return digits;
}

}  // namespace

double exact_match(const Problem& problem, std::string_view completion) {
  return completion == problem.answer ? 1 : 0;
}

Result<Task> Task::named(std::string_view name, std::uint32_t digits) {
  if (digits == 0 || digits > kTaskDigits)
    return fail(ErrorCode::kInvalidInput, fmt::format("task {}: expected 1 to {} digits, found {}",
                                                      quote_text(name), kTaskDigits, digits));
  if (name == kReverseName) return Task(Kind::kReverse, digits);
  if (name == kSortName) return Task(Kind::kSort, digits);
  return fail(ErrorCode::kInvalidInput, fmt::format("there is no task {}; expected {} or {}",
                                                    quote_text(name), kReverseName, kSortName));
}

Problem Task::problem(std::uint64_t seed, std::uint64_t number) const {
  const std::string digits = random_digits(seed, number, digits_);
  Problem problem{.prompt = {}, .answer = digits};
  switch (kind_) {
    case Kind::kReverse:
      problem.prompt = kReverseName;
      std::reverse(problem.answer.begin(), problem.answer.end());
      break;
    case Kind::kSort:
      problem.prompt = kSortName;
      std::sort(problem.answer.begin(), problem.answer.end());
      break;
  }
  problem.prompt += kAfterName + digits + kBeforeAnswer;
  return problem;
}

std::size_t Task::prompt_bytes() const noexcept {
  const std::size_t name = kind_ == Kind::kReverse ? kReverseName.size() : kSortName.size();
  return name + digits_ + 2;
}

std::size_t Task::answer_bytes() const noexcept { return digits_; }

}  // namespace wsync::rollout
