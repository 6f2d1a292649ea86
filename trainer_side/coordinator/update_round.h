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
#include "shared/base/liveness.h"
#include "shared/base/round_deadlines.h"
#include "shared/base/switch_deadlines.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_record.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::publish {

struct CoordinatorOptions {
  std::array<std::uint64_t, 2> run_id{};  // 128 random bits, new for each process
  // What was stored when this process began; none: nothing was ever stored here.
  std::optional<CoordinatorRecord> record;
  control::FleetId fleet_id;       // of the configuration; none: the record's, or the sidecars'
  control::FleetId new_fleet_id;   // 128 random bits, taken when nobody names a fleet
  bool take_over = false;          // claim above a higher fence instead of stopping
  std::uint32_t min_sidecars = 1;  // wait for so many before claiming ...
  std::uint32_t min_replicas = 1;  // whole replicas that must have staged
  CommitPolicy commit;
  TransportPolicy transport = TransportPolicy::kAuto;
  std::string boot_id;       // of this host
  std::string host_socket;   // told in Welcome
  std::string data_address;  // told in Welcome; empty = no TCP source
  PauseMode pause_mode = PauseMode::kAbort;
  // ... but not longer than this after the first Hello. A coordinator that knows no fleet id
  // always waits so long, because any sidecar that comes in this time may name one.
  std::chrono::milliseconds gather{500};
  // How long it waits for the sidecars that its record names, from its first event on.
  std::chrono::milliseconds gather_recorded{limits::kGatherDeadlineMs};
  std::chrono::milliseconds hello{limits::kHelloDeadlineMs};
  std::chrono::milliseconds announce{limits::kAnnounceDeadlineMs};
  std::chrono::milliseconds stage{limits::kStageDeadlineMs};
  // Once all have staged and whole replicas lack: how long heartbeats may bring more of them.
  std::chrono::milliseconds attach{limits::kHeartbeatDeadlineMs};
  std::chrono::milliseconds pause{limits::kPauseDeadlineMs};
  std::chrono::milliseconds load{limits::kLoadDeadlineMs};
  std::chrono::milliseconds whole_switch{limits::kSwitchDeadlineMs};
};

// ---- events ----

// A message from a peer of the control port. A Hello makes it a sidecar.
struct PeerMessage {
  std::string peer;
  control::Envelope envelope;
  control::Message message;
  // Of a Hello: the process that was known by this name is known to have ended.
  bool predecessor_gone = false;
};
struct PeerLost {
  std::string peer;
  std::string reason;
};
// A complete snapshot under a version from next_version(), to be brought to the fleet.
struct PublishRequested {
  std::uint64_t request = 0;  // chosen by the caller, comes back in RoundDone
  Version version;
  Digest layout_digest;
  Digest content_digest;
  Bytes layout;  // encoded Manifest
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t snapshot_ns = 0;
  // When it has ended, well or not, whatever it waits for; none = its phases' deadlines alone.
  std::optional<TimePoint> deadline = {};
};
struct RollbackRequested {
  std::uint64_t request = 0;
  Version to;  // 0.0 = the previous one
};
// Ends the update that runs, or the one of this version, if it has not been decided.
struct CancelRequested {
  std::uint64_t request = 0;
  Version version;  // 0.0 = the one that runs
};
// Another process has taken the control address over: sidecars that come will come to it.
struct Replaced {
  std::string by;
};
struct CoordinatorTick {};
// The answer to Store.
struct Stored {
  std::uint64_t token = 0;
  CoordinatorRecord record;  // what is stored now; a claim may have taken over a newer decision
  std::string failure;       // not empty: it was not stored, and the record before it stands
  bool fenced = false;       // because another coordinator has the store now
};

struct CoordinatorEvent {
  TimePoint now{};
  std::variant<PeerMessage, PeerLost, PublishRequested, RollbackRequested, CancelRequested,
               Replaced, CoordinatorTick, Stored>
      what;
};

// ---- commands ----

struct SendTo {
  std::string peer;
  control::Envelope envelope;
  control::Message message;
};
// Store this record durably (decision_store.h), then give Stored.
struct Store {
  std::uint64_t token = 0;
  CoordinatorRecord record;
};
// Something that the people who run this fleet should know.
struct Incident {
  std::string text;
  bool refusal = false;  // of a sidecar: why it does not join
};
// The claim is over: rounds may begin.
struct Ready {
  control::Fence fence;
  Version target;  // recovered from the sidecars; 0.0 = none
};
struct PhaseEntered {
  std::uint64_t request = 0;
  control::ProgressPhase phase = control::ProgressPhase::kAnnounce;
};
struct RoundDone {
  std::uint64_t request = 0;
  bool superseded = false;
  bool cancelled = false;
  control::PushReply reply;
};
// Comes after the RoundDone of what was cancelled.
struct CancelDone {
  std::uint64_t request = 0;
  control::CancelReply reply;
};
// The rollback has been decided; its RollbackDone follows.
struct RollbackBegan {
  std::uint64_t request = 0;
  Version to;
};
struct RollbackDone {
  std::uint64_t request = 0;
  control::RollbackReply reply;
};
// No sidecar will be sent this version any more: its snapshot may go.
struct DropVersion {
  Version version;
};
// This coordinator must not act any more: a higher fence has been seen, it was replaced, it cannot
// know its fleet, or its claim could not be stored.
struct Stopped {
  ErrorCode code = ErrorCode::kFenced;
  std::string reason;
};
using CoordinatorCommand =
    std::variant<SendTo, Store, Incident, Ready, PhaseEntered, RoundDone, RollbackBegan,
                 RollbackDone, CancelDone, DropVersion, Stopped>;

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
  [[nodiscard]] CoordinatorPhase phase() const noexcept { return phase_; }
  // The claim that is stored; epoch 0 before there is one.
  [[nodiscard]] const control::Fence& fence() const noexcept { return record_.fence; }
  [[nodiscard]] const Version& target() const noexcept { return record_.target; }
  [[nodiscard]] const CoordinatorRecord& record() const noexcept { return record_; }
  // Names of the record whose sidecars have not come, while it waits for them; else empty.
  [[nodiscard]] std::vector<std::string> awaited() const;
  // Why it has stopped; empty while it has not.
  [[nodiscard]] const std::optional<Stopped>& stopped() const noexcept { return stopped_; }
  [[nodiscard]] const Roster& roster() const noexcept { return roster_; }
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
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
  // The first broken invariant as a sentence; empty when all hold.
  [[nodiscard]] std::string invariants() const;

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
  void back_in_switch(Member& member, const control::Hello& hello, bool is_new_process);
  [[nodiscard]] std::string why_no_sidecar(const control::Fence& said_under,
                                           const control::Hello& hello) const;
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
  void stop(const std::string& why, ErrorCode code = ErrorCode::kFenced);
  void answer_error(const std::string& peer, std::string why);
  // Adds to what every Decide forbids, within the bound of the message.
  void withdraw(std::vector<Version>& withdrawn, const std::vector<Version>& versions) const;
  // Marks replicas that must not be routed to, whatever their sidecar says of them.
  void judge(Member& member);
  // What is stored.
  enum class Storing : std::uint8_t { kClaim, kDecision };
  void store(Storing what, CoordinatorRecord next,
             std::optional<RollbackRequested> rollback = std::nullopt);
  void store_members();  // when they have changed, behind what goes on
  void claim_stored();
  void decision_stored(const std::optional<RollbackRequested>& rollback);
  void not_stored(const Stored& event);
  void store_deadline();
  void remember(const std::string& name);
  // The claim.
  [[nodiscard]] bool is_foreign(const control::Fence& fence) const;
  void foreign_hello(const PeerMessage& event, const control::Hello& hello);
  void leave(Member& member);
  void refuse_hello(const std::string& peer, const std::string& why);
  [[nodiscard]] std::string why_name_is_taken(const PeerMessage& event,
                                              const control::Hello& hello) const;
  [[nodiscard]] Result<control::FleetId> choose_fleet() const;
  void gather_more();
  // `request`: of the Hello that is answered; 0 asks for one.
  void welcome(Member& member, std::uint64_t request);
  void welcome_back(const PeerMessage& event);
  void claim();
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
  // `content`: of the target, where no snapshot here tells it; zero: not known.
  // `origin`: of a decision that is repeated; none: this one is new.
  void decide(control::DecisionKind kind, const Version& target, const Digest& content = {},
              const control::Decision& origin = {},
              std::optional<RollbackRequested> rollback = std::nullopt);
  void send_decide(Member& member);
  void take_decided(Member& member);
  [[nodiscard]] bool knows_newer(const Member& member) const;
  [[nodiscard]] bool owes_decided(const Member& member) const;
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
  void send(const Member& member, control::Message message, std::uint64_t round,
            std::uint64_t request = 0);
  enum class Refusal : std::uint8_t { kFailed, kSuperseded, kCancelled };
  void refuse_publish(const PublishRequested& publish, const std::string& why,
                      Refusal kind = Refusal::kFailed);
  [[nodiscard]] std::string why_not_cancelled(const Version& version) const;

  CoordinatorOptions options_;
  CoordinatorPhase phase_ = CoordinatorPhase::kGathering;
  CoordinatorRecord record_;  // as it is stored, but for members and withdrawn, which follow
  control::FleetId fleet_;    // none: not known yet
  bool fleet_binds_ = false;  // it was configured, or named by somebody who has taken a decision
  std::uint64_t highest_epoch_ = 0;  // heard of, before the claim
  std::uint64_t seen_step_ = 0;      // highest step of any version heard of
  std::uint64_t used_step_ = 0;      // highest step named under this epoch
  Roster roster_;
  Version previous_target_;
  Digest previous_content_;
  Version rollback_from_;  // what the newest rollback left
  // A claim or decision that is being stored. All events but those that it must answer wait for it.
  struct Pending {
    std::uint64_t token = 0;
    Storing what = Storing::kClaim;
    TimePoint deadline{};
    std::optional<RollbackRequested> rollback;
    CoordinatorRecord next;
    bool withdrawn_changed = false;  // as it was before
  };
  std::optional<Pending> pending_;
  std::deque<CoordinatorEvent> queue_;
  std::uint64_t token_ = 0;
  // Members and withdrawn versions of record_ are written behind what goes on.
  bool members_changed_ = false;
  bool withdrawn_changed_ = false;          // since the newest decision: it has to be told to all
  std::uint64_t members_token_ = 0;         // of the write under way; 0 = none
  std::optional<TimePoint> members_again_;  // after a write that failed
  std::optional<TimePoint> follow_again_;   // after a decision without a round was not stored
  std::optional<TimePoint> began_;          // the first event
  std::optional<TimePoint> first_hello_;
  std::set<std::string> told_;  // why sidecars were refused
  std::optional<TimePoint> stranger_welcomed_;
  bool ending_ = false;  // rounds end because this coordinator stops or claims anew
  std::optional<Stopped> stopped_;
  std::optional<Round> round_;
  std::optional<PublishRequested> waiting_;
  std::vector<PublishRequested> held_;  // versions whose snapshots are here
  std::uint64_t next_round_ = 0;
  TimePoint now_{};
  std::optional<TimePoint> deadline_;  // of the phase
  std::uint64_t dropped_ = 0;
  std::vector<CoordinatorCommand> out_;
};

}  // namespace wsync::publish
