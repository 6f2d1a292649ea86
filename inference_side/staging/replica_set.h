// ReplicaSet: the replicas of a sidecar, each with its switch (reload/replica_switch.h), and the
// outcomes that are owed to the coordinator for the newest decision.
//
// A decision in turns: a replica that serves pauses only with a turn. The coordinator says how many
// turns may be held here at once, and give_turns() passes them on.
//
// Every call takes the stored record and the time. The goal of every switch is the target of the
// record.
//
// This class has more than 25 methods: most are short views of the same switches, for outcomes, for
// turns, and for what is forgotten.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "inference_side/reload/replica_switch.h"
#include "inference_side/staging/sidecar_events.h"
#include "inference_side/staging/sidecar_record.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::staging {

enum class OutcomeState : std::uint8_t {
  kIdle,        // this process has stored no decision
  kCollecting,  // a replica still owes an outcome
  kReported,    // every outcome was sent
};

[[nodiscard]] std::string_view outcome_state_name(OutcomeState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable outcome_transitions();

// The output of a switch: a command for its engines, or a check of a copy that it could not load.
using ReplicaCommand = std::variant<ForReplica, reload::CopySuspect>;

// The outcomes of all replicas, which form the answer to a decision.
struct OutcomeReport {
  control::Fence fence;  // of the decision
  std::uint64_t round = 0;
  std::uint64_t request = 0;
  control::Switched switched;
};

// Of the replicas of one sidecar (control::ReplicaTurn).
struct TurnCounts {
  std::uint32_t waiting = 0;
  std::uint32_t held = 0;
  friend bool operator==(const TurnCounts&, const TurnCounts&) = default;
};

class ReplicaSet {
 public:
  using Replicas = std::map<std::string, reload::ReplicaSwitch>;
  using Commands = std::vector<ReplicaCommand>;

  // Reads the options of replicas and the deadlines.
  explicit ReplicaSet(const SidecarOptions& options);

  [[nodiscard]] const Replicas& all() const noexcept { return replicas_; }
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // Whether a switch reads staged bytes of `version`, or may roll back to it.
  [[nodiscard]] bool needs(const Version& version) const;
  // A description of the switches in progress for operators; std::nullopt if every replica is idle.
  [[nodiscard]] std::optional<std::string> activity() const;

  // Handles an event of a rank. An unknown replica is added, and receives the versions in `staged`.
  // Returns std::nullopt and changes nothing if the event names an unknown replica, or another
  // world size than that of a replica in use.
  [[nodiscard]] std::optional<Commands> handle(const ReplicaEvent& event,
                                               const SidecarRecord& record,
                                               const reload::StagedSet& staged, TimePoint now);
  // Passes the time to every replica whose timer is due.
  [[nodiscard]] Commands tick(const SidecarRecord& record, TimePoint now);
  // A replica without an attached rank that owes no outcome is forgotten after `forget_after`.
  // These return the names of those that are due, the reason why one may not be forgotten now
  // (kNotFound: it is unknown), and forget one for which check_forget() has returned no error.
  [[nodiscard]] std::vector<std::string> due_to_forget(TimePoint now) const;
  [[nodiscard]] Result<> check_forget(const std::string& name) const;
  void forget(const std::string& name);
  [[nodiscard]] Commands notify_staged(const reload::StagedSet& staged, const SidecarRecord& record,
                                       TimePoint now);
  [[nodiscard]] Commands notify_withdrawn(const SidecarRecord& record, TimePoint now);
  // The decision in `record` was stored. Every replica switches and owes an outcome.
  [[nodiscard]] Commands decide(const control::Envelope& envelope, const control::Decide& decide,
                                const SidecarRecord& record, TimePoint now);

  // How many replicas may hold a turn at once; 0 after each decision.
  [[nodiscard]] std::uint32_t turns() const noexcept { return turns_; }
  // With 0, a replica that has failed in its turn may wait for another one. `only`: the replica
  // that may have them; empty: any.
  void set_turns(std::uint32_t turns, const std::string& only = {});
  // Gives the free turns to replicas that wait for one, first to those that have had the fewest.
  // Call it after each event.
  [[nodiscard]] Commands give_turns(const SidecarRecord& record, TimePoint now);
  // How many replicas wait for a turn, and how many hold one.
  [[nodiscard]] TurnCounts turn_counts() const;
  // What a replica reports of its turn. One that has failed in its turn does not wait while others
  // here still have turns. Otherwise two that fail again and again would pass a turn to each other
  // for ever, and no other sidecar would get it.
  [[nodiscard]] control::ReplicaTurn turn_of(const std::string& name) const;

  [[nodiscard]] OutcomeState outcome_state() const noexcept { return state_; }
  // Returns the outcomes once, as soon as no replica owes one.
  [[nodiscard]] std::optional<OutcomeReport> take_report();
  // The report of a decision if it was the last one; otherwise nullptr.
  [[nodiscard]] const control::Switched* reported(const control::Decision& decision) const;

  // Returns kInternal if the goal of a replica is not the record's target.
  [[nodiscard]] Result<> invariants(const SidecarRecord& record) const;

 private:
  void move(OutcomeState to);
  void step(const std::string& name, const reload::SwitchEvent& event, const SidecarRecord& record,
            Commands& out);
  [[nodiscard]] std::vector<std::string> names() const;
  void note_attached(const std::string& name, TimePoint now);
  [[nodiscard]] reload::TargetSet target_event(const SidecarRecord& record, bool owed) const;

  reload::SwitchOptions options_;
  std::chrono::milliseconds pause_;
  std::chrono::milliseconds load_;
  std::chrono::milliseconds forget_after_;
  Replicas replicas_;
  std::map<std::string, TimePoint> gone_;  // replicas without an attached rank, and since when
  OutcomeState state_ = OutcomeState::kIdle;
  std::uint32_t turns_ = 0;
  std::string turns_only_;          // as `only` of set_turns()
  std::set<std::string> had_turn_;  // replicas, since there were no turns
  // The last decision that was applied, and its sender.
  control::Envelope envelope_;
  control::Decide decide_;
  control::Switched switched_;  // the outcomes collected so far, or as reported
};

}  // namespace wsync::staging
