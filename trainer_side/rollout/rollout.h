// Rollouts: what a policy generated, its rewards, and the micro-batches that a step trains on.
// Pure.
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
  // Generated tokens; the last one is the end of the answer, if it was generated.
  std::vector<std::uint32_t> tokens;
  std::vector<float> log_probabilities;  // of each token, under the policy that generated it
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
// Returns the lowest step of all versions that generated a token of the group; 0 without a version.
[[nodiscard]] std::uint64_t oldest_step(const Group& group);
// Returns the lowest epoch of these versions. It may be the epoch of another version than the
// lowest step.
[[nodiscard]] std::uint32_t oldest_epoch(const Group& group);

// Returns the advantages of the rewards of one group: (r - mean) / (deviation + 1e-4), with the
// population's standard deviation. All are 0 if all rewards are equal (GRPO, Shao et al. 2024,
// arXiv 2402.03300, section 4.1.2).
[[nodiscard]] std::vector<double> group_advantages(std::span<const double> rewards);

struct BatchShape {
  std::size_t micro_batches = 1;  // of all replicas
  std::size_t sequences = 1;      // of a micro-batch
  std::size_t sequence = 1;       // tokens of each sequence
};
// Returns the micro-batches of a step, with one sequence for each rollout in order: the prompt and
// the answer without its last token, padded with bytes of 0. Only generated tokens have a weight.
// The weights make the loss of the step the mean over all generated tokens, independent of the
// lengths of the answers (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.3). `loss` is copied.
// If loss.kl is not 0, call refer_to() (agreement.h) next.
//
// Returns kInvalidInput if the number of rollouts differs from the number of sequences, if a
// sequence is longer than the shape's, if there are no tokens, if a number is not finite, or if the
// loss is not valid (training::is_valid()).
[[nodiscard]] Result<std::vector<training::MicroBatch>> policy_batches(
    std::span<const Group> groups, const BatchShape& shape, const training::PolicyLoss& loss);
// The same for right answers with their ends, one for each sequence, to train with cross-entropy.
[[nodiscard]] Result<std::vector<training::MicroBatch>> supervised_batches(
    std::span<const Problem> problems, const BatchShape& shape);

// Encodes micro-batches to send them from one rank to another. `decode_batches` returns
// kInvalidInput if the bytes are truncated or have a remainder, if a list does not have the length
// that the shape requires, or if a loss is not valid.
[[nodiscard]] Bytes encode_batches(std::span<const training::MicroBatch> batches);
[[nodiscard]] Result<std::vector<training::MicroBatch>> decode_batches(
    std::span<const std::byte> bytes, const BatchShape& shape);

}  // namespace wsync::rollout
