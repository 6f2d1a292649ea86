#include "trainer_side/rollout/rollout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "shared/base/format.h"
#include "trainer_side/training/loss.h"

namespace wsync::rollout {
namespace {

using training::MicroBatch;
using training::PolicyLoss;
using training::PolicyTarget;

constexpr double kDeviationFloor = 1e-4;

// The prompt, and the answer, whose tokens are the targets with a weight.
struct Sequence {
  std::string_view prompt;
  std::vector<std::uint32_t> answer;
};

void append_bytes(std::string_view text, std::vector<std::uint32_t>& tokens) {
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
}

// The micro-batches of a step, filled with one sequence after the other.
class StepBatches {
 public:
  StepBatches(const BatchShape& shape, const PolicyLoss* loss) : shape_(shape) {
    MicroBatch empty{.sequence = shape.sequence};
    empty.tokens.resize(shape.sequences * shape.sequence);
    empty.targets.resize(empty.tokens.size());
    empty.weights.resize(empty.tokens.size());
    if (loss != nullptr) {
      empty.policy.resize(empty.tokens.size());
      empty.policy_loss = *loss;
    }
    batches_.assign(shape.micro_batches, empty);
  }

  // `policy` has one entry for each token of the answer; it is empty without a policy loss.
  [[nodiscard]] Result<> add(const Sequence& sequence, std::span<const PolicyTarget> policy) {
    if (sequence.prompt.empty())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("sequence {}: its prompt is empty; expected at least one byte, from "
                              "which its first token is predicted",
                              added_));
    std::vector<std::uint32_t> all;
    append_bytes(sequence.prompt, all);
    all.insert(all.end(), sequence.answer.begin(), sequence.answer.end());
    if (all.size() - 1 > shape_.sequence)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("sequence {}: {} of prompt and {} of answer but the last; at most {} "
                              "fit, so take longer sequences or fewer new tokens",
                              added_, counted(sequence.prompt.size(), "token"),
                              sequence.answer.size(), shape_.sequence));
    MicroBatch& batch = batches_[added_ / shape_.sequences];
    const std::size_t first = added_ % shape_.sequences * shape_.sequence;
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
      batch.tokens[first + i] = all[i];
      batch.targets[first + i] = all[i + 1];
    }
    const std::size_t answer = first + sequence.prompt.size() - 1;
    for (std::size_t i = 0; i < sequence.answer.size(); ++i) {
      batch.weights[answer + i] = 1;
      if (!policy.empty()) batch.policy[answer + i] = policy[i];
    }
    counting_ += sequence.answer.size();
    ++added_;
    return {};
  }

  // Scales the weights: the mean over all tokens becomes the mean over the tokens with a weight.
  [[nodiscard]] Result<std::vector<MicroBatch>> take() && {
    if (counting_ == 0)
      return fail(ErrorCode::kInvalidInput,
                  "the step's sequences have no generated token; expected one or more");
    const double tokens = static_cast<double>(shape_.micro_batches) *
                          static_cast<double>(shape_.sequences * shape_.sequence);
    const auto weight = static_cast<float>(tokens / static_cast<double>(counting_));
    for (MicroBatch& batch : batches_)
      for (float& counts : batch.weights) counts *= weight;
    return std::move(batches_);
  }

 private:
  BatchShape shape_;
  std::vector<MicroBatch> batches_;
  std::size_t added_ = 0;
  std::size_t counting_ = 0;  // targets with a weight
};

Result<> check_count(std::size_t found, const BatchShape& shape) {
  if (shape.micro_batches == 0 || shape.sequences == 0 || shape.sequence == 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} micro-batches of {} sequences of {} tokens: expected 1 or more of "
                            "each",
                            shape.micro_batches, shape.sequences, shape.sequence));
  if (found == shape.micro_batches * shape.sequences) return {};
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("{} for {} micro-batches of {} each; expected {}", counted(found, "sequence"),
                  shape.micro_batches, shape.sequences, shape.micro_batches * shape.sequences));
}

// `number` is the index of the rollout in the step.
Result<std::vector<PolicyTarget>> policy_targets(const Rollout& rollout, std::size_t number) {
  const std::size_t tokens = rollout.tokens.size();
  if (rollout.log_probabilities.size() != tokens)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rollout {}: {} and {} log-probabilities; expected as many", number,
                            counted(tokens, "token"), rollout.log_probabilities.size()));
  const auto advantage = static_cast<float>(rollout.advantage);
  if (!std::isfinite(advantage))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rollout {}: its advantage is {}; expected a finite number", number,
                            rollout.advantage));
  std::vector<PolicyTarget> targets(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    if (!std::isfinite(rollout.log_probabilities[i]))
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("rollout {}: the log-probability of token {} is {}; expected a finite "
                      "number",
                      number, i, rollout.log_probabilities[i]));
    targets[i] = {.advantage = advantage, .behaviour = rollout.log_probabilities[i]};
  }
  return targets;
}

// A list is encoded as its length and the bytes of its elements.
template <class T>
void put_list(ByteWriter& writer, const std::vector<T>& list) {
  static_assert(std::is_trivially_copyable_v<T>);
  writer.put(static_cast<std::uint64_t>(list.size()));
  writer.put_raw(std::as_bytes(std::span(list)));
}
static_assert(sizeof(PolicyTarget) == 3 * sizeof(float), "a list of them has no padding");

// Reads a list of `expected` elements, or an empty list if it is optional.
template <class T>
std::vector<T> get_list(ByteReader& reader, std::uint64_t expected, bool may_be_empty,
                        std::string_view field) {
  const auto length = reader.get<std::uint64_t>(field);
  if (length != expected && !(may_be_empty && length == 0)) {
    reader.violate(field, fmt::format("{} elements, expected {}", length, expected));
    return {};
  }
  if (length > reader.remaining() / sizeof(T)) {
    reader.violate(field, fmt::format("{} elements do not fit in the {} that are left", length,
                                      counted(reader.remaining(), "byte")));
    return {};
  }
  const Bytes raw = reader.get_raw(length * sizeof(T), field);
  std::vector<T> list(raw.size() / sizeof(T));
  if (!raw.empty()) std::memcpy(list.data(), raw.data(), raw.size());
  return list;
}

void put_float(ByteWriter& writer, float value) { writer.put(std::bit_cast<std::uint32_t>(value)); }
float get_float(ByteReader& reader, std::string_view field) {
  return std::bit_cast<float>(reader.get<std::uint32_t>(field));
}

std::string wrong_loss_text(const PolicyLoss& loss) {
  return fmt::format("clip_low {}, clip_high {}, kl {}; expected finite numbers of 0 or more",
                     loss.clip_low, loss.clip_high, loss.kl);
}

MicroBatch get_batch(ByteReader& reader, const BatchShape& shape) {
  const std::uint64_t tokens = std::uint64_t{shape.sequences} * shape.sequence;
  MicroBatch batch;
  batch.sequence = reader.get<std::uint64_t>("sequence");
  if (reader.ok() && batch.sequence != shape.sequence)
    reader.violate("sequence", fmt::format("{}, expected {}", batch.sequence, shape.sequence));
  batch.tokens = get_list<std::uint32_t>(reader, tokens, false, "tokens");
  batch.targets = get_list<std::uint32_t>(reader, tokens, false, "targets");
  batch.weights = get_list<float>(reader, tokens, true, "weights");
  batch.policy = get_list<PolicyTarget>(reader, tokens, true, "policy");
  batch.policy_loss.clip_low = get_float(reader, "clip_low");
  batch.policy_loss.clip_high = get_float(reader, "clip_high");
  batch.policy_loss.kl = get_float(reader, "kl");
  if (reader.ok() && !training::is_valid(batch.policy_loss))
    reader.violate("policy_loss", wrong_loss_text(batch.policy_loss));
  return batch;
}

}  // namespace

std::uint64_t oldest_step(const Group& group) {
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (const Rollout& rollout : group.rollouts)
    for (const Span& span : rollout.spans) oldest = std::min(oldest, span.version.step);
  return oldest == std::numeric_limits<std::uint64_t>::max() ? 0 : oldest;
}

std::uint32_t oldest_epoch(const Group& group) {
  std::uint32_t oldest = std::numeric_limits<std::uint32_t>::max();
  for (const Rollout& rollout : group.rollouts)
    for (const Span& span : rollout.spans) oldest = std::min(oldest, span.version.epoch);
  return oldest == std::numeric_limits<std::uint32_t>::max() ? 0 : oldest;
}

std::vector<double> group_advantages(std::span<const double> rewards) {
  std::vector<double> advantages(rewards.size());
  const auto differs = [&](double reward) { return reward != rewards.front(); };
  if (std::none_of(rewards.begin(), rewards.end(), differs)) return advantages;
  const auto count = static_cast<double>(rewards.size());
  double mean = 0;
  for (const double reward : rewards) mean += reward / count;
  double variance = 0;
  for (const double reward : rewards) variance += (reward - mean) * (reward - mean) / count;
  for (std::size_t i = 0; i < rewards.size(); ++i)
    advantages[i] = (rewards[i] - mean) / (std::sqrt(variance) + kDeviationFloor);
  return advantages;
}

Result<std::vector<MicroBatch>> policy_batches(std::span<const Group> groups,
                                               const BatchShape& shape, const PolicyLoss& loss) {
  std::size_t rollouts = 0;
  for (const Group& group : groups) rollouts += group.rollouts.size();
  WSYNC_TRY(check_count(rollouts, shape));
  if (!training::is_valid(loss))
    return fail(ErrorCode::kInvalidInput, "the loss: " + wrong_loss_text(loss));
  StepBatches batches(shape, &loss);
  std::size_t number = 0;
  for (const Group& group : groups) {
    for (const Rollout& rollout : group.rollouts) {
      const auto targets = WSYNC_TRY(policy_targets(rollout, number));
      WSYNC_TRY(batches.add({group.problem.prompt, rollout.tokens}, targets));
      ++number;
    }
  }
  return std::move(batches).take();
}

Result<std::vector<MicroBatch>> supervised_batches(std::span<const Problem> problems,
                                                   const BatchShape& shape) {
  WSYNC_TRY(check_count(problems.size(), shape));
  StepBatches batches(shape, nullptr);
  for (const Problem& problem : problems) {
    Sequence sequence{problem.prompt, {}};
    append_bytes(problem.answer, sequence.answer);
    append_bytes(std::string_view(&kEndOfAnswer, 1), sequence.answer);
    WSYNC_TRY(batches.add(sequence, {}));
  }
  return std::move(batches).take();
}

Bytes encode_batches(std::span<const MicroBatch> batches) {
  ByteWriter writer;
  writer.put(static_cast<std::uint64_t>(batches.size()));
  for (const MicroBatch& batch : batches) {
    writer.put(static_cast<std::uint64_t>(batch.sequence));
    put_list(writer, batch.tokens);
    put_list(writer, batch.targets);
    put_list(writer, batch.weights);
    put_list(writer, batch.policy);
    put_float(writer, batch.policy_loss.clip_low);
    put_float(writer, batch.policy_loss.clip_high);
    put_float(writer, batch.policy_loss.kl);
  }
  return std::move(writer).take();
}

Result<std::vector<MicroBatch>> decode_batches(std::span<const std::byte> bytes,
                                               const BatchShape& shape) {
  ByteReader reader(bytes);
  const auto count = reader.get<std::uint64_t>("micro_batches");
  if (reader.ok() && count != shape.micro_batches)
    reader.violate("micro_batches", fmt::format("{}, expected {}", count, shape.micro_batches));
  std::vector<MicroBatch> batches;
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i)
    batches.push_back(get_batch(reader, shape));
  WSYNC_TRY(reader.finish("the micro-batches of a step"));
  return batches;
}

}  // namespace wsync::rollout
