// Recomputed: what the tokens of an answer come to with the weights of the versions that it names,
// by the plain loops of the trainer. No word of an engine goes into it: a layer that was of another
// version, bytes that came late, and keys and values of older weights all change its numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "shared/weights/version.h"
#include "tests/soak/answer.h"
#include "trainer_side/training/parameters.h"

namespace wsync::soak {

// By which the log-probability of a token may differ. The same arithmetic in another order differs
// by less than a hundredth of it, another set of weights by a thousand times as much.
inline constexpr double kLogProbabilityLimit = 1e-3;

// Thread: any; one answer at a time.
class Recomputed {
 public:
  // The weights of a version, as engines have them; borrowed, and of the model. Any thread.
  using WeightsOf = std::function<const training::ParameterSet&(const Version&)>;

  // `spec`: every token is computed by every expert, or two that are about as likely could change
  // places by a rounding. Checked by check_spec().
  Recomputed(const moe::ModelSpec& spec, WeightsOf weights_of);

  // The largest difference of a token's log-probability from what the engine told, when each span
  // and all that stands before it is computed with the span's version. kInvalidInput, with the
  // token, its version and both numbers, when it is above the limit or no number; and when a token
  // is not of the vocabulary. `answer` as of read_answer(), with the prompt inside max_positions.
  [[nodiscard]] Result<double> difference(std::span<const std::uint32_t> prompt,
                                          const Answer& answer);

 private:
  const moe::ModelSpec spec_;
  const WeightsOf weights_of_;
  std::mutex mutex_;
};

}  // namespace wsync::soak
