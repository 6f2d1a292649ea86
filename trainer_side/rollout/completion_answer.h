// Requests to engines and their answers, as JSON. Pure. Answers are not trusted: each is checked
// against its request.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/units.h"
#include "trainer_side/rollout/completion_client.h"

namespace wsync::rollout {

// Maximum JSON size of one token.
inline constexpr std::uint64_t kAnswerTokenBytes = 1 * limits::kKiB;
// Size of the fields around the tokens.
inline constexpr std::uint64_t kAnswerFrameBytes = 64 * limits::kKiB;
inline constexpr std::uint64_t kAnswerBytes = 256 * limits::kMiB;  // maximum size of one answer
// Log-probabilities up to this value are accepted, because rounding can put them above 0.
inline constexpr double kLogProbabilitySlack = 1e-3;

// Returns the body of a request for completions. Only the token of `stop` ends an answer
// (stop_token_ids, ignore_eos), and it is the last token of the answer.
[[nodiscard]] std::string question_body(const CompletionQuestion& question);
// Maximum size of the body of an answer to the question.
[[nodiscard]] std::uint64_t max_answer_bytes(const CompletionQuestion& question) noexcept;

// Returns the rollouts of an answer, by index, with `replica` set in each. Returns kBusy if the
// engine has aborted one of them. Returns kInvalidInput, with the position in the answer, if it is
// not JSON, if the number of choices is wrong, if tokens are not bytes or too many, if a stop is
// not at the end of its answer, if a log-probability is not finite or above 0, or if spans do not
// cover the tokens.
[[nodiscard]] Result<std::vector<Rollout>> read_answer(std::string_view body,
                                                       const CompletionQuestion& question,
                                                       const std::string& replica);
// Returns the version in an answer to /weight_info. Returns kBusy if the engine has no weights yet,
// and kInvalidInput if the answer is malformed.
[[nodiscard]] Result<Version> read_served(std::string_view body);
// Returns the quoted reason of an engine's refusal: the message in OpenAI's form, a reason, or the
// beginning of the body.
[[nodiscard]] std::string read_refusal(std::string_view body);

}  // namespace wsync::rollout
