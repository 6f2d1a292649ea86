// Sidecar: the core of an inference host as a pure state machine. It combines
//   - Registration: its registration with the coordinator (registration.h),
//   - DecisionRecord: what is stored before it is applied (decision_record.h),
//   - ReceiveRound: the incoming version (receive_round.h),
//   - HeldVersions: the verified copies (held_versions.h),
//   - ReplicaSet: the switches of its replicas, and their outcomes (replica_set.h).
//
// Each of these has its states, its transition table and its invariants. The sidecar itself only
// dispatches events to them, and converts the changes into commands.
//
// Usage: pass every event to step() with the current time, and execute the commands in order. Keep
// one timer at next_wake() and send Tick when it fires. The port watches for silence
// (CoordinatorLost) and sends heartbeat(); everything else to be sent is a Reply.
//
// The sidecar also works without a coordinator: it accepts engines, and brings them to the target
// from the held copies.
//
// This class has more than 25 methods and some 400 lines, because each of the twelve events and of
// the seven messages that it handles has an overload. The overloads are short and keep no state of
// their own.
//
// Thread: confined to one thread. No I/O. Nothing here blocks or throws.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/reload/replica_switch.h"
#include "inference_side/staging/decision_record.h"
#include "inference_side/staging/held_versions.h"
#include "inference_side/staging/receive_round.h"
#include "inference_side/staging/registration.h"
#include "inference_side/staging/replica_set.h"
#include "inference_side/staging/sidecar_events.h"
#include "inference_side/staging/sidecar_record.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::staging {

class Sidecar {
 public:
  // `record`: the record on disk, or a default record. `held`: copies that survived a restart (none
  // if they were in anonymous memory).
  explicit Sidecar(SidecarOptions options, SidecarRecord record = {},
                   std::vector<HeldCopy> held = {});

  // Aborts the process if an invariant is broken.
  [[nodiscard]] std::vector<SidecarCommand> step(const SidecarEvent& event);

  // When the next Tick is due; std::nullopt if no timer is needed.
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // The heartbeat for the coordinator. The agent fills in sequence and staged_bytes. Its envelope
  // carries fence().
  [[nodiscard]] control::Heartbeat heartbeat(TimePoint now) const;
  [[nodiscard]] control::StatusReply status(TimePoint now) const;
  [[nodiscard]] const SidecarRecord& record() const noexcept { return record_.stored(); }
  // Of a message that answers none: its fence, and what its coordinator understands.
  [[nodiscard]] control::Envelope envelope() const;
  [[nodiscard]] const control::Fence& fence() const noexcept { return record_.stored().fence; }
  [[nodiscard]] bool welcomed() const noexcept { return registration_.welcomed(); }
  [[nodiscard]] const HeldVersions& held() const noexcept { return held_; }
  [[nodiscard]] const std::map<std::string, reload::ReplicaSwitch>& replicas() const noexcept {
    return replicas_.all();
  }
  // The reports of one replica and of all replicas, as heartbeats, status and metrics show them.
  [[nodiscard]] control::ReplicaReport report(const reload::ReplicaSwitch& replica,
                                              TimePoint now) const;
  [[nodiscard]] std::vector<control::ReplicaReport> reports(TimePoint now) const;
  // Returns the reason why a replica may not be forgotten now (ReplicaSet::check_forget).
  [[nodiscard]] Result<> check_forget(const std::string& replica) const {
    return replicas_.check_forget(replica);
  }
  // The version that is offered or being staged; none = 0.0.
  [[nodiscard]] Version incoming() const { return round_.version(); }
  // Number of messages that were late, duplicate, of another round or of a lower fence.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
  // kInternal with the first broken rule of its parts, or of their agreement: the copy of the
  // target is what was decided, a staged version is held, every replica works towards the target.
  [[nodiscard]] Result<> invariants() const;

 private:
  void handle(const LinkUp& event);
  void handle(const CoordinatorLost& event);
  void handle(const CoordinatorMessage& event);
  void handle(const Persisted& event);
  void handle(const LayoutChecked& event);
  void handle(const StagingDone& event);
  void handle(const StagingFailed& event);
  void handle(const CopyChecked& event);
  void handle(const VersionCompleted& event);
  void handle(const ReplicaEvent& event);
  void handle(const reload::Tick& event);
  void handle(const ForgetReplica& event);

  void apply(const CoordinatorMessage& event);
  void apply(const control::Envelope& envelope, const control::Welcome& message);
  void apply(const control::Envelope& envelope, const control::Announce& message);
  void apply(const control::Envelope& envelope, const control::Stage& message);
  void apply(const control::Envelope& envelope, const control::Abort& message);
  void apply(const control::Envelope& envelope, const control::Decide& message);
  void apply(const control::Envelope& envelope, const control::Turns& message);
  void apply(const control::Envelope& envelope, const control::Leave& message);
  void apply(const control::Envelope& envelope, const control::RelayVersion& message);

  void apply_decision(const control::Envelope& envelope, const control::Decide& decide);
  [[nodiscard]] TargetFacts facts_of(const Version& target) const;
  [[nodiscard]] std::optional<std::string> offer_refusal(const control::Announce& announce) const;
  // Whether this sidecar knows other bytes under that name: those of the target, of a copy, or
  // those that were announced.
  [[nodiscard]] bool knows_other_bytes(const Version& version, const Digest& content) const;
  // The content digest of the incoming version, which may follow its bytes.
  void learn_content(const Digest& content);
  [[nodiscard]] bool needed(const Version& version) const;
  [[nodiscard]] reload::StagedSet loadable() const;
  [[nodiscard]] Version base_to_keep() const;
  void complete_wanted();
  [[nodiscard]] bool is_held_back(const ForReplica& command);
  void give_loads();
  void refuse_load(const std::string& replica, const reload::BeginLoad& load, std::string_view why);
  [[nodiscard]] bool leads_to_target(const Version& version) const;
  void put_off_completion(const Version& version);
  void release_lost(const std::vector<Version>& versions);
  [[nodiscard]] bool make_room();
  [[nodiscard]] std::vector<Version> release_order() const;
  [[nodiscard]] std::optional<Version> oldest_unneeded() const;
  void release_surplus();
  // An empty reason: the version is staged.
  void reply_staged(const StagingFailed& failure);
  void drop_incoming();
  void release(const Version& version);
  void release_undecided();
  void notify_staged();
  void forget(const std::string& replica);
  // Passes free turns on, and has the coordinator informed of a change at once.
  void give_turns();
  void forward(ReplicaSet::Commands commands);
  void send_hello();
  [[nodiscard]] bool hello_must_wait() const;
  void reply(std::uint64_t round, std::uint64_t request, control::Message message);

  SidecarOptions options_;
  Registration registration_;
  // Of this release, those that the coordinator of this connection has named.
  control::Capabilities capabilities_ = 0;
  DecisionRecord record_;
  HeldVersions held_;
  ReceiveRound round_;
  ReplicaSet replicas_;
  Digest layout_;                 // the last one accepted
  bool fits_beside_ = false;      // of the offered version, as in LayoutChecked
  bool beat_due_ = false;         // the next heartbeat cannot wait
  bool notify_replicas_ = false;  // the held versions have changed
  TurnCounts turn_counts_;        // at the end of the last event
  // Loads of versions that are not complete yet, by replica.
  std::map<std::string, reload::BeginLoad> held_back_;
  std::uint64_t dropped_ = 0;
  TimePoint now_{};
  std::vector<SidecarCommand> out_;
};

}  // namespace wsync::staging
