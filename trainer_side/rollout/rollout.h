// What a policy has generated, what it is worth, and what a step trains on of it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/weights/version.h"
#include "trainer_side/rollout/task.h"
#include "trainer_side/training/micro_batch.h"

namespace wsync::rollout {

// Tokens [start, end) of an answer were computed with this version.
struct Span {
  std::uint32_t start = 0;
  std::uint32_t end = 0;
  Version version;
  friend bool operator==(const Span&, const Span&) = default;
};

// One answer. A token is a byte.
struct Rollout {
  std::vector<std::uint32_t> tokens;     // generated; the end of the answer is the last, if it came
  std::vector<float> log_probabilities;  // of each, under the policy that generated it
  std::vector<Span> spans;               // cover all tokens, in order
  std::string replica;
  double reward = 0;
  double advantage = 0;
};

// The answers to one problem.
struct Group {
  Problem problem;
  std::vector<Rollout> rollouts;
  double seconds = 0;  // from the question to the last answer
};
// The lowest step of a version that generated a token of the group; that of no version is 0.
[[nodiscard]] std::uint64_t oldest_step(const Group& group);
// The lowest epoch of such a version, with which it need not go together.
[[nodiscard]] std::uint32_t oldest_epoch(const Group& group);

// Advantages of the rewards of one group: (r - mean) / (deviation + 1e-4), with the deviation of
// the population; all 0 where all rewards are equal (GRPO, Shao et al. 2024, arXiv 2402.03300,
// section 4.1.2).
[[nodiscard]] std::vector<double> group_advantages(std::span<const double> rewards);

struct BatchShape {
  std::size_t micro_batches = 1;  // of all replicas
  std::size_t sequences = 1;      // of a micro-batch
  std::size_t sequence = 1;       // tokens of each
};
// The micro-batches of a step, one sequence for each rollout, in their order: prompt and answer but
// its last token, with bytes of 0 up to the length. Only generated tokens count, and so that the
// loss of the step is the mean over them all, long answers and short ones alike (DAPO, Yu et al.
// 2025, arXiv 2503.14476, section 3.3). `loss` is taken over; where loss.kl is not 0, refer_to()
// (agreement.h) is next. kInvalidInput: not as many rollouts as sequences; a sequence that is
// longer than the shape's; no token at all; numbers that are not finite; a loss that is none
// (training::is_valid()).
[[nodiscard]] Result<std::vector<training::MicroBatch>> policy_batches(
    std::span<const Group> groups, const BatchShape& shape, const training::PolicyLoss& loss);
// The same of right answers with their ends, to learn from by cross-entropy; one for each sequence.
[[nodiscard]] Result<std::vector<training::MicroBatch>> supervised_batches(
    std::span<const Problem> problems, const BatchShape& shape);

// Micro-batches as bytes, from one rank to another. `decode_batches` refuses, by kInvalidInput,
// what is cut, has something left over, is not of the shape (each list as long as it has to be), or
// has a loss that is none.
[[nodiscard]] Bytes encode_batches(std::span<const training::MicroBatch> batches);
[[nodiscard]] Result<std::vector<training::MicroBatch>> decode_batches(
    std::span<const std::byte> bytes, const BatchShape& shape);

}  // namespace wsync::rollout
