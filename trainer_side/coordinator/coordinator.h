// The coordinator of a fleet as a pure state machine. It claims a fence, continues from the newest
// decision, runs update rounds and rollbacks, and brings late sidecars up to date.
//
// This class receives the events and passes them to the classes that decide: FenceClaim,
// DecisionLog, RoundScheduler with its UpdateRound, and the Delivery of each sidecar. README.md of
// this folder describes each of them.
//
// A sidecar never receives anything that this fleet could forget in a crash: a claim and each
// decision are stored first (Store), and while one is being stored every other event waits in a
// queue.
//
// Usage: pass every event to step() with the current time, and execute the commands in order. Keep
// one timer at next_wake() and send CoordinatorTick when it fires. Pass received heartbeats as
// messages. The port sends the coordinator's own heartbeats and reports lost peers.
//
// This class has more than 25 methods and 350 lines: a dozen methods are views for the agent,
// metrics and pages, and each event has its own method. The decisions are in the other classes.
//
// Thread: confined to one thread. No I/O. Nothing here blocks or throws.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/coordinator_events.h"
#include "trainer_side/coordinator/coordinator_options.h"
#include "trainer_side/coordinator/decision_log.h"
#include "trainer_side/coordinator/fence_claim.h"
#include "trainer_side/coordinator/roster.h"
#include "trainer_side/coordinator/round_scheduler.h"
#include "trainer_side/coordinator/version_names.h"

namespace wsync::coordinator {

// The current activity of the coordinator, for operators and metrics.
enum class CoordinatorPhase : std::uint8_t {
  kGathering,   // collecting Hellos
  kClaiming,    // fence chosen; waiting for Hellos under it
  kReady,       // no round is running
  kAnnouncing,  // a round: waiting for Accept or Refuse
  kStaging,     // a round: bytes are moving, or its decision is being stored
  kSwitching,   // decided; waiting for the sidecars' outcomes
  kStopped,
};
[[nodiscard]] std::string_view phase_name(CoordinatorPhase phase) noexcept;

class Coordinator {
 public:
  using Moved = MovedBytes;

  explicit Coordinator(CoordinatorOptions options);
  // See coordinator::transport_problems().
  [[nodiscard]] std::string transport_problems() const;
  // Sets CoordinatorOptions::transports and secret, for callers that bind them later. Call it
  // before step().
  void serve_by(std::vector<control::TransportAddress> transports,
                const std::optional<transport::PairSecret>& secret = std::nullopt) {
    context_.options.transports = std::move(transports);
    context_.options.secret = secret;
  }

  [[nodiscard]] std::vector<CoordinatorCommand> step(const CoordinatorEvent& event);

  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  [[nodiscard]] CoordinatorPhase phase() const noexcept;
  // The stored claim; epoch 0 before the first one.
  [[nodiscard]] const control::Fence& fence() const noexcept { return record().fence; }
  [[nodiscard]] const Version& target() const noexcept { return record().target; }
  [[nodiscard]] const CoordinatorRecord& record() const noexcept { return log_.record(); }
  // While gathering: names in the record whose sidecars have not arrived; otherwise empty.
  [[nodiscard]] std::vector<std::string> awaited() const { return claim_.awaited(context_); }
  // Why it has stopped; std::nullopt if it has not.
  [[nodiscard]] const std::optional<Stopped>& stopped() const noexcept { return claim_.stopped(); }
  [[nodiscard]] const Roster& roster() const noexcept { return context_.roster; }
  // The name for the next snapshot: the fence epoch, and `step`, or if `step` is 0 one above all
  // used steps. Returns kInvalidInput if the step was used or is invalid, kBusy before the claim.
  [[nodiscard]] Result<Version> next_version(std::uint64_t step = 0) const;
  [[nodiscard]] control::StatusReply status() const;
  // Bytes moved in the running round (UpdateRound::moved); both 0 without a round.
  [[nodiscard]] Moved moved_bytes() const;
  // Whether CancelRequested with this version concerns an update of this machine, decided or not.
  // With 0.0: whether a round is running.
  [[nodiscard]] bool has_update(const Version& version) const noexcept;
  // Whether a publish may be requested before its snapshot is complete: its round would begin at
  // once, and a sidecar that copies would receive the first bytes earlier.
  [[nodiscard]] bool may_stream() const;
  // Whether the trainer may hold the next version as what changes from the target
  // (all_take_changes()).
  [[nodiscard]] bool may_hold_changes() const;
  // Why a RollbackRequested would be refused now, but not later; std::nullopt: it would not.
  [[nodiscard]] std::optional<std::string> why_rollback_waits() const;
  // Number of replicas that wait because only the canary serves the target.
  [[nodiscard]] std::uint32_t canary_waiting() const noexcept {
    return rounds_.canary().holds() ? rounds_.canary().behind() : 0;
  }
  // The sidecars that are in the roster or in the record.
  [[nodiscard]] std::set<std::string> known_sidecars() const;
  // Whether a sidecar may still ask for this version.
  [[nodiscard]] bool holds(const Version& version) const { return rounds_.holds(version); }
  [[nodiscard]] const VersionNames& names() const noexcept { return names_; }
  // Number of messages that were late, of another round, or of a lower fence.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return context_.dropped; }
  // Returns kInternal with the first broken rule, of this machine or of a member. step() checks
  // only the rules whose cost does not grow with the number of sidecars.
  [[nodiscard]] Result<> invariants() const;

 private:
  // ---- events ----
  [[nodiscard]] bool must_wait(const CoordinatorEvent& event) const;
  [[nodiscard]] bool replace_waiting_hello(const CoordinatorEvent& event);
  void note_queued(const CoordinatorEvent& event);
  void expire_queued();
  void apply(const CoordinatorEvent& event);
  [[nodiscard]] Result<> own_invariants() const;
  [[nodiscard]] Result<> check_forget(const ForgetRequested& event) const;
  void forget_absent();
  void refuse_stopped(const CoordinatorEvent& event);
  void handle(const PeerMessage& event);
  void handle(const PeerLost& event);
  void handle(const PublishRequested& event);
  void handle(const RollbackRequested& event);
  void handle(const PromoteRequested& event);
  void handle(const CancelRequested& event);
  void handle(const WaitingReplaced& event);
  void handle(const ForgetRequested& event);
  void handle(const SnapshotEnded& event);
  void handle(const Replaced& event);
  void handle(const PublisherAttached& event);
  void handle(const PublisherLost& event);
  void handle(const CoordinatorTick& event);
  void handle(const Stored& event);
  void note_offered(const Version& version);
  void handle_hello(const PeerMessage& event, const control::Hello& hello);
  void handle_foreign_hello(const PeerMessage& event, const control::Hello& hello);
  void handle_higher_fence(const control::Fence& seen, const std::string& who);
  void handle_not_stored(const StoreOutcome& outcome);

  // ---- the claim ----
  // Registers the sidecar with the state in its Hello. `in_switch`: it stays a member of the
  // switching round.
  // What depends on the addresses of the trainer, and on those of the sidecar.
  void choose_source(Member& member);
  Member& register_sidecar(const PeerMessage& event, const control::Hello& hello, bool in_switch);
  void join(Member& member, const control::Hello& hello, bool in_switch);
  void leave(Member& member);
  void gather();
  void begin_claim();
  void finish_claim();
  void stop(const Error& why);

  CoordinatorContext context_;
  DecisionLog log_;
  FenceClaim claim_;
  RoundScheduler rounds_;
  VersionNames names_;
  // When members of the record that have not connected to this process are forgotten.
  std::optional<TimePoint> forget_absent_at_;
  std::deque<CoordinatorEvent> queue_;        // events that wait until the store answers
  std::optional<TimePoint> queued_deadline_;  // the first one of the publishes in it
};

}  // namespace wsync::coordinator
