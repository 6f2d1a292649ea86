// The coordinator as a pure state machine: it claims a fence, recovers the target, runs update
// rounds (announce, stage, decide), rolls back, and brings late sidecars up to date.
//
// Nothing is told to a sidecar that a crash could make this fleet forget: a claim and each decision
// are stored first (Store), and while one is being stored every other event waits in a queue.
//
// Driving it: give every event to step() with the current time and carry out the commands in
// order. Keep one timer at next_wake() and send Tick when it fires. Heartbeats that a sidecar
// sends are given in as messages; sending ours, and telling that a peer is lost, is the port's job.
//
// Thread: one. No I/O. Nothing here blocks or throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/kinds.h"
#include "shared/base/limits.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_events.h"
#include "trainer_side/coordinator/coordinator_options.h"
#include "trainer_side/coordinator/coordinator_record.h"
#include "trainer_side/coordinator/decision_log.h"
#include "trainer_side/coordinator/decision_obligations.h"
#include "trainer_side/coordinator/fence_claim.h"
#include "trainer_side/coordinator/roster.h"
#include "trainer_side/coordinator/version_names.h"

namespace wsync::publish {

enum class CoordinatorPhase : std::uint8_t {
  kGathering,   // collects Hellos
  kClaiming,    // fence chosen; waits for Hellos under it
  kReady,       // no round
  kAnnouncing,  // a round: waits for accept or refuse
  kStaging,     // a round: bytes are moving
  kSwitching,   // decided; waits for the sidecars' outcomes
  kStopped,
};
[[nodiscard]] std::string_view phase_name(CoordinatorPhase phase) noexcept;

class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);

  [[nodiscard]] std::vector<CoordinatorCommand> step(const CoordinatorEvent& event);

  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  [[nodiscard]] CoordinatorPhase phase() const noexcept;
  // The claim that is stored; epoch 0 before there is one.
  [[nodiscard]] const control::Fence& fence() const noexcept { return log_.record().fence; }
  [[nodiscard]] const Version& target() const noexcept { return log_.record().target; }
  [[nodiscard]] const CoordinatorRecord& record() const noexcept { return log_.record(); }
  // Names of the record whose sidecars have not come, while it waits for them; else empty.
  [[nodiscard]] std::vector<std::string> awaited() const { return claim_.awaited(context_); }
  // Why it has stopped; empty while it has not.
  [[nodiscard]] const std::optional<Stopped>& stopped() const noexcept { return claim_.stopped(); }
  [[nodiscard]] const Roster& roster() const noexcept { return context_.roster; }
  // The name for the next snapshot: (fence epoch, one step above all that were used); with a step
  // given, that one. kInvalidInput when the step was used or is no step, kBusy before the claim.
  [[nodiscard]] Result<Version> next_version(std::uint64_t step = 0) const;
  [[nodiscard]] control::StatusReply status() const;
  // What has moved in the round that runs, summed over its sidecars, or over their replicas once it
  // is decided; `total` is what will have moved. Both 0 without a round and before it stages. What
  // a rollback loads is not known here: its total is 0.
  struct Moved {
    std::uint64_t done = 0;
    std::uint64_t total = 0;
  };
  [[nodiscard]] Moved moved_bytes() const;
  // Whether CancelRequested with this version is about an update that this machine has, decided or
  // not; with 0.0, whether a round runs.
  [[nodiscard]] bool has_update(const Version& version) const noexcept;
  // Messages that were late, of another round, or of a lower fence.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return context_.dropped; }
  // kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Round {
    PublishRequested publish;
    std::vector<std::string> members;  // names, in chain order
    TimePoint started{};
    TimePoint decided{};
    bool is_rollback = false;
    std::uint64_t rollback_request = 0;
    Version from;
    std::vector<control::Problem> problems;
    bool lacks_replicas = false;  // all have staged; deadline_ is that of `attach`
    bool cancelled = false;
  };

  // What arrives.
  void on(const PeerMessage& event);
  void on(const PeerLost& event);
  void on(const PublishRequested& event);
  void on(const RollbackRequested& event);
  void on(const CancelRequested& event);
  void on(const Replaced& event);
  void on(const CoordinatorTick& event);
  void on(const Stored& event);
  [[nodiscard]] bool waits_for_store(const CoordinatorEvent& event) const;
  void apply(const CoordinatorEvent& event);
  void on_hello(const PeerMessage& event, const control::Hello& hello);
  void on_member(Member& member, const control::Envelope& envelope,
                 const control::Message& message);
  void on_accept(Member& member);
  void on_refuse(Member& member, const control::Refuse& refuse);
  void on_staged(Member& member, const control::Staged& staged);
  void on_decided(Member& member, const control::Decided& decided);
  void on_switched(Member& member, const control::Switched& switched);
  void on_heartbeat(Member& member, const control::Heartbeat& heartbeat);
  void higher_fence(const control::Fence& seen, const std::string& who);
  void end_rounds(const std::string& why);
  void stop(const Error& why);
  // What is stored.
  void decision_stored(const std::optional<RollbackRequested>& rollback);
  void not_stored(const StoreOutcome& outcome);
  // The claim.
  void foreign_hello(const PeerMessage& event, const control::Hello& hello);
  void leave(Member& member);
  void gather_more();
  void claim();
  void claim_deadline();
  void finish_claim();
  // Decides what the newest decision of all known ones has chosen, if that is not the target here;
  // true when it did.
  bool follow_newest();
  // Deliveries, of a round and to catch up.
  void announce(Member& member, const PublishRequested& publish);
  void stage(Member& member);
  void bridge(const Member& lost);
  void lose(Member& member);
  void forget_delivery(Member& member);
  [[nodiscard]] std::string chain_source(const Member& member) const;
  void staging_failed(Member& member, const control::Staged& staged);
  void delivery_failed(Member& member, const std::string& why);
  void catch_up(Member& member);
  [[nodiscard]] bool announce_target(Member& member);
  // The round.
  void start_round(const PublishRequested& publish);
  void advance_round();
  void enter_staging();
  void decide(const DecisionChoice& choice,
              std::optional<RollbackRequested> rollback = std::nullopt);
  void abort_round(const std::string& why);
  void finish_round();
  void finish_publish();
  void finish_rollback();
  void start_waiting();
  void drop_unneeded();
  [[nodiscard]] bool in_round(const Member& member) const;
  void leave_round(const Member& member);
  void phase_deadline();
  void fail_late();
  [[nodiscard]] TimePoint in_time(std::chrono::milliseconds phase) const;
  void on_layout_unknown(Member& member);
  void refuse_rollback(const RollbackRequested& event, const std::string& why);
  [[nodiscard]] bool is_delivery(const Member& member, const control::Envelope& envelope,
                                 const Version& version, DeliveryPhase phase);
  [[nodiscard]] std::uint32_t staged_replicas() const;
  [[nodiscard]] std::uint32_t needed_replicas() const;
  [[nodiscard]] bool enough_staged() const;
  [[nodiscard]] const PublishRequested* snapshot_of(const Version& version) const;
  enum class Refusal : std::uint8_t { kFailed, kSuperseded, kCancelled };
  void refuse_publish(const PublishRequested& publish, const std::string& why,
                      Refusal kind = Refusal::kFailed);
  [[nodiscard]] std::string why_not_cancelled(const Version& version) const;

  CoordinatorContext context_;
  DecisionLog log_;
  FenceClaim claim_;
  VersionNames names_;
  CoordinatorPhase phase_ = CoordinatorPhase::kReady;  // once the fence is claimed
  std::deque<CoordinatorEvent> queue_;
  bool ending_ = false;  // rounds end because this coordinator stops or claims anew
  std::optional<Round> round_;
  std::optional<PublishRequested> waiting_;
  std::vector<PublishRequested> held_;  // versions whose snapshots are here
  std::uint64_t next_round_ = 0;
  std::optional<TimePoint> deadline_;  // of the phase
};

}  // namespace wsync::publish
