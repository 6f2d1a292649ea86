// What an engine is asked and what it answers, as JSON. Pure. Answers come from outside: each is
// held to what was asked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/units.h"
#include "trainer_side/rollout/completion_client.h"

namespace wsync::rollout {

inline constexpr std::uint64_t kAnswerTokenBytes = 1 * limits::kKiB;   // JSON of one, at most
inline constexpr std::uint64_t kAnswerFrameBytes = 64 * limits::kKiB;  // what stands around them
inline constexpr std::uint64_t kAnswerBytes = 256 * limits::kMiB;      // of one answer
// A log-probability that rounding has put above 0 is taken.
inline constexpr double kLogProbabilitySlack = 1e-3;

// The body of a request for completions. The token of `stop` ends an answer and is its last
// (stop_token_ids); no other does (ignore_eos).
[[nodiscard]] std::string question_body(const CompletionQuestion& question);
// What the body of an answer to it may have.
[[nodiscard]] std::uint64_t max_answer_bytes(const CompletionQuestion& question) noexcept;

// The rollouts of an answer, by index; `replica` is written into each. kBusy: the engine has
// aborted one of them. kInvalidInput, with the place in the answer: no JSON, not as many choices as
// were asked for, tokens that are no bytes or too many, a stop anywhere but where the answer ends
// with it, log-probabilities that are not finite or above 0, spans that do not cover the tokens.
[[nodiscard]] Result<std::vector<Rollout>> read_answer(std::string_view body,
                                                       const CompletionQuestion& question,
                                                       const std::string& replica);
// The version in an answer to /weight_info. kBusy: the engine has no weights yet; kInvalidInput.
[[nodiscard]] Result<Version> read_served(std::string_view body);
// What an engine says when it refuses: the message of OpenAI's form, a reason, or how the body
// begins; quoted.
[[nodiscard]] std::string read_refusal(std::string_view body);

}  // namespace wsync::rollout
