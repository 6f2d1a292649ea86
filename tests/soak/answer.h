// Reads what an engine reports about the versions that computed an answer. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::soak {

// Tokens [begin, end) of an answer, and the version that is reported to have computed them.
struct AnsweredSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  Version version;
};
struct Answer {
  std::vector<std::uint32_t> tokens;
  std::vector<double> log_probabilities;  // of each token, as natural logarithms
  std::vector<AnsweredSpan> spans;        // ordered; together they cover all tokens
};

struct Asked {
  std::uint32_t tokens = 0;  // max_tokens; nothing else may end the answer
  Version oldest;            // version that was served when the request was sent
};

// Reads the single choice of a completion (OpenAI's format with token_ids, logprobs and
// weight_versions). kInvalidInput, with the reason, in these cases: the text is not such a
// completion; it ended for another reason than its length; a token has no log-probability; the
// spans are not contiguous from 0 to the number of tokens; or the versions do not ascend from
// `oldest` or a newer version.
[[nodiscard]] Result<Answer> read_answer(std::string_view body, const Asked& asked);

}  // namespace wsync::soak
