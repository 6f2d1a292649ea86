// Recomputed computes the tokens of an answer again from the weights of the versions that the
// answer names, with the plain loops of the trainer. It uses no data of an engine. Any of these
// faults changes its numbers: a layer of another version, bytes that arrived late, or keys and
// values of older weights.
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

// Maximum difference of a token's log-probability. The same arithmetic in another order differs by
// less than a hundredth of this limit, other weights by about a thousand times the limit.
inline constexpr double kLogProbabilityLimit = 1e-3;

// Thread: any, but only one answer at a time.
class Recomputed {
 public:
  // Returns the weights of a version as engines have them. They are borrowed and match the model.
  // Any thread.
  using WeightsOf = std::function<const training::ParameterSet&(const Version&)>;

  // `spec` has passed check_spec(). Every expert must compute every token. Otherwise rounding could
  // exchange two experts that are almost equally likely.
  Recomputed(const moe::ModelSpec& spec, WeightsOf weights_of);

  // Returns the maximum difference between the engine's log-probabilities and the recomputed ones.
  // Each span and everything before it is computed with the span's version. kInvalidInput, with the
  // token, its version and both numbers, if a difference exceeds the limit or is not a number, and
  // if a token is not in the vocabulary. `answer` comes from read_answer(), and its prompt fits in
  // max_positions.
  [[nodiscard]] Result<double> difference(std::span<const std::uint32_t> prompt,
                                          const Answer& answer);

 private:
  const moe::ModelSpec spec_;
  const WeightsOf weights_of_;
  std::mutex mutex_;
};

}  // namespace wsync::soak
