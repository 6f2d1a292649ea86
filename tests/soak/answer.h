// What an engine has to say about the versions that computed an answer. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::soak {

// Tokens [begin, end) of an answer, and the version that is said to have computed them.
struct AnsweredSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  Version version;
};
struct Answer {
  std::vector<std::uint32_t> tokens;
  std::vector<double> log_probabilities;  // of each, as natural logarithms
  std::vector<AnsweredSpan> spans;        // cover all tokens, in their order
};

struct Asked {
  std::uint32_t tokens = 0;  // max_tokens; nothing else ends the answer
  Version oldest;            // what was served when it was asked
};

// The one choice of a completion (OpenAI's form with token_ids, logprobs and weight_versions).
// kInvalidInput says what is wrong: it is no such completion, it has ended otherwise than by its
// length, a token has no log-probability, its spans are not contiguous from 0 to its tokens, or
// their versions do not ascend from `oldest` or a newer one.
[[nodiscard]] Result<Answer> read_answer(std::string_view body, const Asked& asked);

}  // namespace wsync::soak
