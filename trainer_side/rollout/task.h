// Tasks whose answers can be checked: what a policy is asked, and what its answer is worth.
//
// Thread: any; all functions are pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::rollout {

// What an answer ends with, and nothing else has in it.
inline constexpr char kEndOfAnswer = '\n';
inline constexpr std::uint32_t kTaskDigits = 32;  // at most

struct Problem {
  std::string prompt;  // bytes; "reverse 4831="
  std::string answer;  // without kEndOfAnswer; "1384"
  friend bool operator==(const Problem&, const Problem&) = default;
};

// What a completion is worth, up to its kEndOfAnswer; may throw std::exception.
// Any thread, several at once.
using Reward = std::function<double(const Problem&, std::string_view completion)>;
// 1 for the answer and nothing more, else 0.
[[nodiscard]] double exact_match(const Problem& problem, std::string_view completion);

class Task {
 public:
  // `name`: "reverse" or "sort", of `digits` (1 to kTaskDigits) decimal digits each. kInvalidInput
  // names what it can be.
  [[nodiscard]] static Result<Task> named(std::string_view name, std::uint32_t digits);

  // Problem `number` of those of a seed: the same for the same arguments.
  [[nodiscard]] Problem problem(std::uint64_t seed, std::uint64_t number) const;
  // Bytes of every prompt, and of every answer without its end.
  [[nodiscard]] std::size_t prompt_bytes() const noexcept;
  [[nodiscard]] std::size_t answer_bytes() const noexcept;

 private:
  enum class Kind : std::uint8_t { kReverse, kSort };
  Task(Kind kind, std::uint32_t digits) : kind_(kind), digits_(digits) {}
  Kind kind_;
  std::uint32_t digits_;
};

}  // namespace wsync::rollout
