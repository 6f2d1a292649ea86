// Serving: the thread of a rank that runs forward steps. The leader begins steps, at most one in
// each interval. A follower takes part when the leader asks it to.
//
// Thread: the events are called on the serving thread. All other methods may be called from any
// thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "inference_side/reference_engine/step_gate.h"
#include "inference_side/reference_engine/step_group.h"
#include "inference_side/reference_engine/step_work.h"

namespace wsync::engine::reference {

struct ServingEvents {
  // Leader: all ranks of the replica are connected now.
  std::function<void(std::uint32_t ranks)> together;
  // This rank stopped serving after `step`. `why` is empty if the stop was requested; otherwise it
  // is one sentence that says that the group broke or that a rank refused a step.
  std::function<void(std::uint64_t step, const std::string& why)> paused;
  // This rank serves, beginning with `step`.
  std::function<void(std::uint64_t step)> running;
  // A step read weights that did not all belong to its version. If this rank saw them, `saw` says
  // where; if another rank did, `saw` is empty.
  std::function<void(std::uint64_t step, const std::string& saw)> torn;
};

struct ServingOptions {
  GroupOptions group;
  std::chrono::microseconds step_interval{2'000};  // between the beginnings of two steps, at least
  // Minimum rest after each step, as a multiple of the step's own duration. Ranks that run steps
  // only to be observed thus leave processor time to others.
  int rest = 4;
};

struct ServingStats {
  std::uint64_t steps = 0;                      // completed steps
  std::map<Version, std::uint64_t> by_version;  // completed steps by version
  std::uint64_t torn = 0;
  // Layers compared with the step's version on this rank, over all steps.
  std::uint64_t layers_compared = 0;
  std::uint64_t aborted = 0;  // steps that some rank refused
  std::uint64_t broken = 0;   // number of times that the group lost a rank
  std::uint64_t last_step = 0;
  std::uint64_t last_total = 0;  // reduction of the last step, equal on all ranks
};

class Serving {
 public:
  // `work` and `gate` are borrowed and outlive this object. Rank 0 is the leader and binds the
  // group's socket here. Nothing runs before start().
  [[nodiscard]] static Result<std::unique_ptr<Serving>> create(ServingOptions options,
                                                               StepWork& work, StepGate& gate,
                                                               ServingEvents events);
  ~Serving();
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  void start();
  // Ends the thread after the current step.
  void stop();

  // Leader: stops all ranks after the same step, as soon as the work allows it in this mode. The
  // `paused` event follows. Returns at once.
  void pause(PauseMode mode);
  // Leader: starts serving and cancels a pause that has not taken effect yet. Waits for the
  // followers. Returns kBusy if they are not all connected within limits::kGroupWholeDeadlineMs,
  // kRefused while loading.
  [[nodiscard]] Result<> resume();
  [[nodiscard]] ServingStats stats() const;
  // Notifies the thread that work is due. Any thread, at any time.
  void wake() noexcept;
  // Leader: whether all ranks of the replica are connected. Any thread.
  [[nodiscard]] bool together() const noexcept { return together_told_; }

 private:
  class Follower;
  enum class Wish : std::uint8_t { kNone, kPause, kResume };

  Serving(ServingOptions options, StepWork& work, StepGate& gate, ServingEvents events);
  void run_leader();
  void run_follower();
  void lead_one_step();
  void stop_all(const std::string& why);
  void broke(const Error& why);
  void grant_resume();
  [[nodiscard]] bool step_is_due();
  [[nodiscard]] Result<Reading> read(const Version& version, std::uint64_t step,
                                     const collective::Team& team);
  void count(std::uint64_t step, const Version& version, const Reading& total);
  void drain_wake() noexcept;

  const ServingOptions options_;
  StepWork* work_;
  StepGate* gate_;
  const ServingEvents events_;
  UniqueFd wake_;
  std::optional<GroupLeader> leader_;        // serving thread, after start()
  std::string saw_;                          // serving thread
  std::uint32_t layers_ = 0;                 // serving thread: layers compared in the current step
  bool running_told_ = false;                // serving thread
  std::atomic<bool> together_told_ = false;  // written by the serving thread
  std::chrono::nanoseconds step_time_{0};
  std::atomic<bool> stopping_ = false;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable answered_;
  Wish wish_ = Wish::kNone;
  PauseMode pause_mode_ = PauseMode::kAbort;
  std::optional<Result<>> resume_answer_;
  std::uint32_t joined_ = 1;
  ServingStats stats_;

  std::thread thread_;  // owner's thread only
};

}  // namespace wsync::engine::reference
