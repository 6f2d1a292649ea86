// RolloutPool: keeps replicas generating while the trainer trains, and gives each step its
// rollouts.
//
// The age of a rollout at step s is s - 1 - (the step of the oldest version that computed one of
// its tokens). Age 0 means that it was generated with the weights at the beginning of the step. A
// rollout that is older than max_staleness when it would be used is dropped, counted, and generated
// again.
//
// Problems have consecutive numbers: step s uses the numbers s * groups to (s + 1) * groups - 1,
// whatever was dropped or failed and whichever replica answered. The sampling seed of a number is
// always the same. A run can therefore be reproduced if its versions can. The pool holds or
// requests at most the groups of max_staleness + 1 steps. It requests a group for step s only from
// a replica that serves at least step s - 1 - max_staleness: the rule of AReaL (Fu et al. 2025,
// arXiv 2505.24298, section 5.1).
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

inline constexpr std::size_t kPoolThreads = 1024;        // replicas * requests
inline constexpr std::uint64_t kPoolGroups = 1U << 16U;  // groups of max_staleness + 1 steps
inline constexpr std::uint32_t kPoolAnswers = 128;       // maximum that an engine accepts
inline constexpr double kRewardMax = 1e9;  // absolute value; far below an overflow of the deviation
inline constexpr std::uint64_t kPoolTokens = 1U << 20U;  // tokens of all answers of a group
// Interval of version requests to a replica that does not yet serve the needed version.
inline constexpr std::chrono::milliseconds kVersionLook{20};

struct PoolOptions {
  std::vector<std::string> replicas;  // URLs
  std::string authorization = {};     // what all of them are shown (CompletionClient::create())
  std::uint32_t groups = 1;           // groups of a step
  std::uint32_t answers = 8;          // answers of a group
  std::uint32_t max_tokens = 16;
  double temperature = 1;
  std::uint64_t seed = 1;  // seed of problems and of sampling
  // Maximum age of a rollout in steps. With 0, a replica is asked for step s only after it serves
  // the weights of step s - 1.
  std::uint32_t max_staleness = 0;
  // If false, versions are reported but not checked, because nobody publishes.
  bool versions_count = true;
  std::uint32_t requests = 4;                  // concurrent requests to each replica
  std::chrono::milliseconds deadline{30'000};  // limit of one request
  // Delay before a replica is asked again after a failure.
  std::chrono::milliseconds retry{500};
};

struct PoolStats {
  std::uint64_t dropped_stale = 0;  // groups that were too old, or of an older epoch
  // Requests that failed: replica lost, late, not ready, aborted, wrong answer.
  std::uint64_t failed = 0;
  std::string last_failure;
};

// The rollouts that a step trains on.
struct RolloutBatch {
  // PoolOptions::groups entries, each with all its answers, their rewards and advantages.
  std::vector<Group> groups;
  double waited_seconds = 0;
  PoolStats stats;  // since the previous batch
};

// Thread: one at a time. The pool has its own thread for each concurrent request.
class RolloutPool {
 public:
  // Returns kInvalidInput for invalid options, which it names, and kResourceExhausted if threads
  // cannot be created. Generation begins with begin(). `reward` is called by several threads at the
  // same time.
  [[nodiscard]] static Result<std::unique_ptr<RolloutPool>> create(PoolOptions options, Task task,
                                                                   Reward reward = exact_match);
  // Cancels running requests.
  ~RolloutPool();

  // Begins with `step`, the next one to be collected; replicas generate with the weights of `step`
  // - 1. Versions of epochs before `min_epoch` belong to another run, whatever their step. A second
  // call drops all rollouts and requests.
  void begin(std::uint64_t step, std::uint32_t min_epoch = 0);
  // Returns the groups of a step, by problem number. Steps must be requested one after the other.
  // Afterwards the pool generates for the next steps as max_staleness allows: with 0 it waits until
  // the trainer has published `step`.
  //
  // kDeadline: incomplete at the deadline; the message has the last failure of a replica, and the
  // step can be requested again. kInternal: the reward function has thrown (the message has its
  // text), or its result is NaN or beyond kRewardMax; call begin() next. kCancelled.
  [[nodiscard]] Result<RolloutBatch> collect(std::uint64_t step,
                                             std::chrono::milliseconds wait_limit);
  // Ends a running collect(), every later one, and all requests. Thread: any.
  void cancel() noexcept;

 private:
  struct State;
  explicit RolloutPool(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync::rollout
