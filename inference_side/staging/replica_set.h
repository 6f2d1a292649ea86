// ReplicaSet: the replicas of a sidecar, each with its switch (reload/replica_switch.h), and the
// outcomes that the coordinator is owed for the newest decision.
//
// Every call takes the stored record and the time: switches work towards the record's target.
//
// Thread: one. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
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
  kIdle,        // no decision was stored by this process
  kCollecting,  // a replica still owes an outcome
  kReported,    // every outcome was sent
};

[[nodiscard]] std::string_view outcome_state_name(OutcomeState state) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable outcome_transitions();

// What a switch wants: a command for its engines, or a check of a copy that it could not load.
using ReplicaCommand = std::variant<ForReplica, reload::CopySuspect>;

// Every replica has an outcome: the answer to a decision.
struct OutcomeReport {
  std::uint64_t round = 0;
  std::uint64_t request = 0;
  control::Switched switched;
};

class ReplicaSet {
 public:
  using Replicas = std::map<std::string, reload::ReplicaSwitch>;
  using Commands = std::vector<ReplicaCommand>;

  // Reads the options of replicas and the deadlines.
  explicit ReplicaSet(const SidecarOptions& options);

  [[nodiscard]] const Replicas& all() const noexcept { return replicas_; }
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // Whether a switch reads staged bytes of `version`, or may go back to it.
  [[nodiscard]] bool needs(const Version& version) const;
  // What is switching, for people; none while every replica is idle.
  [[nodiscard]] std::optional<std::string> activity() const;

  // An event of a rank. A replica that is not known yet is added, and is told of the versions in
  // `staged`. No value: the event names an unknown replica, or another number of ranks than the
  // replica has while it is in use; it changes nothing.
  [[nodiscard]] std::optional<Commands> handle(const ReplicaEvent& event,
                                               const SidecarRecord& record,
                                               const std::vector<Version>& staged, TimePoint now);
  // Passes the time to every replica whose timer is due.
  [[nodiscard]] Commands tick(const SidecarRecord& record, TimePoint now);
  [[nodiscard]] Commands notify_staged(const std::vector<Version>& staged,
                                       const SidecarRecord& record, TimePoint now);
  [[nodiscard]] Commands notify_withdrawn(const SidecarRecord& record, TimePoint now);
  // The decision in `record` was stored: every replica switches, and its outcome is owed.
  [[nodiscard]] Commands decide(const control::Envelope& envelope, const control::Decide& decide,
                                const SidecarRecord& record, TimePoint now);

  [[nodiscard]] OutcomeState outcome_state() const noexcept { return state_; }
  // The outcomes, once, as soon as no replica owes one.
  [[nodiscard]] std::optional<OutcomeReport> take_report();
  // The report of decision `number`, when it was the last one; else null.
  [[nodiscard]] const control::Switched* reported(std::uint64_t number) const;

  // kInternal when a replica works towards another version than the record's target.
  [[nodiscard]] Result<> invariants(const SidecarRecord& record) const;

 private:
  void move(OutcomeState to);
  void step(const std::string& name, const reload::SwitchEvent& event, const SidecarRecord& record,
            Commands& out);
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] reload::TargetSet target_event(const SidecarRecord& record, bool owed) const;

  reload::SwitchOptions options_;
  std::chrono::milliseconds pause_;
  std::chrono::milliseconds load_;
  Replicas replicas_;
  OutcomeState state_ = OutcomeState::kIdle;
  // The last decision that was acted on, and who sent it.
  control::Envelope envelope_;
  control::Decide decide_;
  control::Switched switched_;  // being collected, or as it was reported
};

}  // namespace wsync::staging
