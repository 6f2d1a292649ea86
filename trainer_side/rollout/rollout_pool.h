// RolloutPool: keeps replicas generating while the trainer trains, and gives each step what it may
// train on.
//
// A rollout's age at step s is s - 1 - (the step of the oldest version that computed one of its
// tokens): 0 is what the weights have generated that the step begins with. What is older than
// max_staleness when it would be used is dropped and counted, and generated anew.
//
// Problems are numbered through: step s trains on the numbers s * groups and following, whatever
// was dropped, failed or answered by whom, and the sampling seed of a number is always the same. So
// a run repeats when its versions do. At most the groups of max_staleness + 1 steps are there or
// asked for, and one for step s only of a replica that serves step s - 1 - max_staleness at least:
// the rule of AReaL (Fu et al. 2025, arXiv 2505.24298, section 5.1).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/rollout/rollout.h"
#include "trainer_side/rollout/task.h"

namespace wsync::rollout {

inline constexpr std::size_t kPoolThreads = 1024;        // replicas times requests
inline constexpr std::uint64_t kPoolGroups = 1U << 16U;  // of max_staleness + 1 steps
inline constexpr std::uint32_t kPoolAnswers = 128;       // the most that an engine takes
inline constexpr double kRewardMax = 1e9;  // up or down: deviations are far from any overflow
inline constexpr std::uint64_t kPoolTokens = 1U << 20U;  // of all answers of a group
// Between two looks at a replica that does not serve yet what is needed.
inline constexpr std::chrono::milliseconds kVersionLook{20};

struct PoolOptions {
  std::vector<std::string> replicas;  // URLs
  std::uint32_t groups = 1;           // of a step
  std::uint32_t answers = 8;          // of a group
  std::uint32_t max_tokens = 16;
  double temperature = 1;
  std::uint64_t seed = 1;  // of problems and of sampling
  // Steps that a rollout may be older than the weights that a step begins with. 0: a replica is
  // asked for step s only once it serves the weights of step s - 1.
  std::uint32_t max_staleness = 0;
  // Off: versions are reported and decide nothing; nobody publishes.
  bool versions_count = true;
  std::uint32_t requests = 4;                  // at once at each replica
  std::chrono::milliseconds deadline{30'000};  // of one question
  // One that did not answer is asked again after this.
  std::chrono::milliseconds retry{500};
};

struct PoolStats {
  std::uint64_t dropped_stale = 0;  // groups: too old, or of an older epoch
  std::uint64_t failed = 0;         // questions: replica lost, late, not ready, aborted, wrong
  std::string last_failure;
};

// What a step trains on.
struct RolloutBatch {
  // As many as PoolOptions::groups, each with all its answers, their rewards and advantages.
  std::vector<Group> groups;
  double waited_seconds = 0;
  PoolStats stats;  // since the one before
};

// Thread: one at a time; it has its own for each question at once.
class RolloutPool {
 public:
  // kInvalidInput: options that make no sense, each named; kResourceExhausted: no threads. Begins
  // to generate with begin(). `reward` is called by several threads at once.
  [[nodiscard]] static Result<std::unique_ptr<RolloutPool>> create(PoolOptions options, Task task,
                                                                   Reward reward = exact_match);
  // Cancels what runs.
  ~RolloutPool();

  // Steps from `step` on are to be harvested, and weights of step `step` - 1 are those to generate
  // with. Versions of an epoch before `least_epoch` are another run's, whatever their step. Once
  // more: what is there or asked for is forgotten.
  void begin(std::uint64_t step, std::uint32_t min_epoch = 0);
  // The groups of a step, by their problems' numbers; steps are asked for one after the other. From
  // then on the pool generates for the step after it, so far as max_staleness lets it: with 0 it
  // waits until the trainer has published `step`. kDeadline: not all there by then, with the last
  // failure of a replica; the step can be asked for again. kInternal: the reward function has
  // thrown, with what it said, or given what is no number or beyond kRewardMost; begin() is next
  // then. kCancelled.
  [[nodiscard]] Result<RolloutBatch> collect(std::uint64_t step,
                                             std::chrono::milliseconds wait_limit);
  // Ends a harvest that waits, every later one, and what is asked; from any thread.
  void cancel() noexcept;

 private:
  struct State;
  explicit RolloutPool(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync::rollout
