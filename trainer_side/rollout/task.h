// Tasks whose answers can be checked: problems for a policy, and rewards for its answers.
//
// Thread: any; all functions are pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::rollout {

// Ends every answer and occurs nowhere else in it.
inline constexpr char kEndOfAnswer = '\n';
inline constexpr std::uint32_t kTaskDigits = 32;  // maximum

struct Problem {
  std::string prompt;  // bytes; "reverse 4831="
  std::string answer;  // without kEndOfAnswer; "1384"
  friend bool operator==(const Problem&, const Problem&) = default;
};

// Returns the reward of a completion, which ends before its kEndOfAnswer. May throw std::exception.
// Thread: any, several at the same time.
using Reward = std::function<double(const Problem&, std::string_view completion)>;
// Returns 1 for exactly the right answer, otherwise 0.
[[nodiscard]] double exact_match(const Problem& problem, std::string_view completion);

class Task {
 public:
  // `name`: "reverse" or "sort". `digits`: number of decimal digits, 1 to kTaskDigits. Returns
  // kInvalidInput, which lists the allowed values.
  [[nodiscard]] static Result<Task> named(std::string_view name, std::uint32_t digits);

  // Returns problem `number` of a seed. The result depends only on the arguments.
  [[nodiscard]] Problem problem(std::uint64_t seed, std::uint64_t number) const;
  // Number of bytes of every prompt, and of every answer without its end.
  [[nodiscard]] std::size_t prompt_bytes() const noexcept;
  [[nodiscard]] std::size_t answer_bytes() const noexcept;

 private:
  enum class Kind : std::uint8_t { kReverse, kSort };
  Task(Kind kind, std::uint32_t digits) : kind_(kind), digits_(digits) {}
  Kind kind_;
  std::uint32_t digits_;
};

}  // namespace wsync::rollout
