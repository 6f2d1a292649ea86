#include "tests/soak/recomputed.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "trainer_side/training/sequential.h"

namespace wsync::soak {

Recomputed::Recomputed(const moe::ModelSpec& spec, WeightsOf weights_of)
    : spec_(spec), weights_of_(std::move(weights_of)) {
  WSYNC_CHECK(spec_.experts_per_token == spec_.experts, "no expert is chosen");
}

Result<double> Recomputed::difference(std::span<const std::uint32_t> prompt, const Answer& answer) {
  WSYNC_CHECK(!prompt.empty() && answer.log_probabilities.size() == answer.tokens.size() &&
                  prompt.size() + answer.tokens.size() <= spec_.max_positions,
              "an answer has a prompt, and is one that the model can give");
  std::vector<std::uint32_t> text(prompt.begin(), prompt.end());
  text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
  if (const auto strange = std::ranges::find_if(
          text, [this](std::uint32_t token) { return token >= spec_.vocabulary; });
      strange != text.end())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("token {} is none of the {} of the vocabulary", *strange, spec_.vocabulary));
  const std::lock_guard lock(mutex_);
  double max = 0;
  for (const AnsweredSpan& span : answer.spans) {
    const training::SequentialModel model(spec_, weights_of_(span.version),
                                          prompt.size() + span.end);
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(prompt.size() + span.end);
    const std::vector<float> computed =
        model.log_probabilities({.sequence = prompt.size() + span.end - 1,
                                 .tokens = {text.begin(), end - 1},
                                 .targets = {text.begin() + 1, end}});
    for (std::uint32_t i = span.begin; i < span.end; ++i) {
      const double own = computed[prompt.size() - 1 + i];
      const double difference = std::abs(own - answer.log_probabilities[i]);
      if (!(difference <= kLogProbabilityLimit))
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("token {} was given with log-probability {:.4f}; by the weights of "
                                "version {}, which is said to have computed it, it has {:.4f}",
                                i, answer.log_probabilities[i], span.version.to_string(), own));
      max = std::max(max, difference);
    }
  }
  return max;
}

}  // namespace wsync::soak
