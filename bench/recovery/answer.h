// What an engine has to say about the versions that computed an answer. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::bench {

struct Asked {
  std::uint32_t tokens = 0;  // max_tokens; nothing else ends the answer
  Version oldest;            // what was served when it was asked
};

// The versions that computed the one choice of a completion (OpenAI's form with token_ids and
// weight_versions), in their order. kInvalidInput says what is wrong: it is no such completion, it
// has ended otherwise than by its length, its spans are not contiguous from 0 to its tokens, or
// their versions do not ascend from `oldest` or a newer one.
[[nodiscard]] Result<std::vector<Version>> versions_of_answer(std::string_view body,
                                                              const Asked& asked);

}  // namespace wsync::bench
