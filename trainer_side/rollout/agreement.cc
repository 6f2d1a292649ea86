#include "trainer_side/rollout/agreement.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "shared/base/check.h"
#include "trainer_side/training/checkpoint.h"
#include "trainer_side/training/sequential.h"

namespace wsync::rollout {
namespace {

// Returns, for each generated token, the step of the version that computed it, in the order of the
// batches.
std::vector<std::uint64_t> steps_of(std::span<const Group> groups) {
  std::vector<std::uint64_t> steps;
  for (const Group& group : groups)
    for (const Rollout& rollout : group.rollouts)
      for (const Span& span : rollout.spans)
        steps.insert(steps.end(), span.end - span.start, span.version.step);
  return steps;
}

void add(double difference, std::size_t& count, double& max, double& sum) {
  ++count;
  max = std::max(max, difference);
  sum += difference;
}

}  // namespace

std::vector<float> counted_log_probabilities(const moe::ModelSpec& spec,
                                             const training::ParameterSet& weights,
                                             std::size_t sequence,
                                             std::span<const training::MicroBatch> batches) {
  const training::SequentialModel model(spec, weights, sequence);
  std::vector<float> counted;
  for (const training::MicroBatch& batch : batches) {
    const std::vector<float> all = model.log_probabilities(batch);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (batch.weights.empty() || batch.weights[i] != 0) counted.push_back(all[i]);
  }
  return counted;
}

void refer_to(const moe::ModelSpec& spec, const training::ParameterSet& weights,
              std::size_t sequence, std::span<training::MicroBatch> batches) {
  const std::vector<float> counted = counted_log_probabilities(spec, weights, sequence, batches);
  std::size_t next = 0;
  for (training::MicroBatch& batch : batches)
    for (std::size_t i = 0; i < batch.policy.size(); ++i)
      if (batch.weights[i] != 0) batch.policy[i].reference = counted[next++];
}

PublishedWeights::PublishedWeights(const moe::ModelSpec& spec, std::size_t versions,
                                   std::size_t sequence)
    : spec_(spec), versions_(std::max<std::size_t>(versions, 1)), sequence_(sequence) {}

void PublishedWeights::keep(std::uint64_t step, training::ParameterSet weights) {
  while (!kept_.empty() && kept_.back().step >= step) kept_.pop_back();
  for (float& value : weights.all()) value = training::from_bfloat16(training::to_bfloat16(value));
  kept_.push_back({.step = step, .weights = std::move(weights)});
  if (kept_.size() > versions_) kept_.pop_front();
}

Agreement PublishedWeights::compare(std::span<const Group> groups,
                                    std::span<const training::MicroBatch> batches) const {
  WSYNC_CHECK(!kept_.empty(), "there are weights to compare with");
  const std::vector<std::uint64_t> steps = steps_of(groups);
  std::vector<float> generated;
  for (const training::MicroBatch& batch : batches)
    for (std::size_t i = 0; i < batch.policy.size(); ++i)
      if (batch.weights[i] != 0) generated.push_back(batch.policy[i].behaviour);
  WSYNC_CHECK(generated.size() == steps.size(), "the batches are those of the groups");
  const std::set<std::uint64_t> used(steps.begin(), steps.end());
  Agreement agreement;
  for (const Kept& kept : kept_) {
    const bool newest = &kept == &kept_.back();
    if (!newest && !used.contains(kept.step)) continue;
    const std::vector<float> computed =
        counted_log_probabilities(spec_, kept.weights, sequence_, batches);
    for (std::size_t i = 0; i < generated.size(); ++i) {
      const double difference = std::abs(double{computed[i]} - double{generated[i]});
      if (steps[i] == kept.step)
        add(difference, agreement.tokens, agreement.mismatch_max, agreement.mismatch_mean);
      if (newest) add(difference, agreement.all_tokens, agreement.drift_max, agreement.drift_mean);
    }
  }
  if (agreement.tokens > 0) agreement.mismatch_mean /= static_cast<double>(agreement.tokens);
  if (agreement.all_tokens > 0) agreement.drift_mean /= static_cast<double>(agreement.all_tokens);
  return agreement;
}

}  // namespace wsync::rollout
