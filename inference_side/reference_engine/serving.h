// Serving: the thread of a rank that runs forward steps. The leader's begins them, at most one in
// each interval; a follower's takes part when the leader says so.
//
// Thread: the events are called on the serving thread; everything else may be called from any
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
  // Leader: every rank of the replica is there now.
  std::function<void(std::uint32_t ranks)> together;
  // This rank has left off serving after `step`: asked, or because its group broke or a rank
  // refused a step (`why` is then one sentence, empty otherwise).
  std::function<void(std::uint64_t step, const std::string& why)> paused;
  // This rank serves, beginning with `step`.
  std::function<void(std::uint64_t step)> running;
  // A step read weights that were not all of its version, here (`saw` says where) or in another
  // rank (`saw` is empty).
  std::function<void(std::uint64_t step, const std::string& saw)> torn;
};

struct ServingOptions {
  GroupOptions group;
  std::chrono::microseconds step_interval{2'000};  // between the beginnings of two steps, at least
  // A step is followed by a rest of that many times its own length, at least: ranks whose steps are
  // there for their own sake leave the cores to others.
  int rest = 4;
};

struct ServingStats {
  std::uint64_t steps = 0;                      // completed
  std::map<Version, std::uint64_t> by_version;  // of those
  std::uint64_t torn = 0;
  std::uint64_t layers_compared = 0;  // with the step's version, on this rank, over all steps
  std::uint64_t aborted = 0;          // some rank refused
  std::uint64_t broken = 0;           // times that the group lost a rank
  std::uint64_t last_step = 0;
  std::uint64_t last_total = 0;  // its reduction, the same on every rank
};

class Serving {
 public:
  // `work` and `gate` are borrowed and outlive this object. Rank 0 leads and binds the group's
  // socket here. Nothing runs before start().
  [[nodiscard]] static Result<std::unique_ptr<Serving>> create(ServingOptions options,
                                                               StepWork& work, StepGate& gate,
                                                               ServingEvents events);
  ~Serving();
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  void start();
  // Ends the thread after the step that runs.
  void stop();

  // Leader: stop all ranks at one step, when the work allows it in this mode; `paused` follows.
  // Returns at once.
  void pause(PauseMode mode);
  // Leader: serve, and forget a pause that has not happened yet. Waits for the followers; kBusy
  // when they are not all there within limits::kGroupWholeDeadlineMs, kRefused while loading.
  [[nodiscard]] Result<> resume();
  [[nodiscard]] ServingStats stats() const;
  // The work has become due. Any thread, at any time.
  void wake() noexcept;
  // Leader: every rank of the replica is there. Any thread.
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
  std::uint32_t layers_ = 0;                 // serving thread: compared in the step that runs
  bool running_told_ = false;                // serving thread
  std::atomic<bool> together_told_ = false;  // written by the serving thread
  std::chrono::nanoseconds step_time_{0};
  std::atomic<bool> stopping_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  Wish wish_ = Wish::kNone;
  PauseMode pause_mode_ = PauseMode::kAbort;
  std::optional<Result<>> resume_answer_;
  std::uint32_t joined_ = 1;
  ServingStats stats_;

  std::thread thread_;  // owner's thread only
};

}  // namespace wsync::engine::reference
