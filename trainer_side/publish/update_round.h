// The coordinator as a pure state machine: it claims a fence, recovers the target, runs update
// rounds (announce, stage, decide), rolls back, and brings late sidecars up to date.
//
// Driving it: give every event to step() with the current time and carry out the commands in
// order. Keep one timer at next_wake() and send Tick when it fires. Heartbeats that a sidecar
// sends are given in as messages; sending ours, and telling that a peer is lost, is the port's job.
//
// Thread: one. No I/O. Nothing here blocks or throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/limits.h"
#include "shared/control/messages.h"
#include "trainer_side/publish/roster.h"

namespace wsync::publish {

// Who must have staged a version before it is decided.
struct CommitPolicy {
  enum class Kind : std::uint8_t {
    kAll,     // every live sidecar; one refusal fails the round
    kQuorum,  // sidecars with at least `quorum` whole replicas
    kEach,    // each switches as soon as it has staged
  };
  Kind kind = Kind::kAll;
  std::uint32_t quorum = 0;
};

enum class TransportPolicy : std::uint8_t {
  kAuto,  // memfd to a sidecar of this host; TCP to the others, and where the hand-over has failed
  kMemfd,
  kTcp,
};

struct CoordinatorOptions {
  std::array<std::uint64_t, 2> run_id{};  // 128 random bits, new for each process
  // Highest epoch this state directory has ever claimed; at most limits::kEpochMax.
  std::uint64_t stored_epoch = 0;
  bool take_over = false;          // claim above a higher fence instead of stopping
  std::uint32_t min_sidecars = 1;  // wait for so many before claiming ...
  std::uint32_t min_replicas = 1;  // whole replicas that must have staged
  CommitPolicy commit;
  TransportPolicy transport = TransportPolicy::kAuto;
  std::string boot_id;       // of this host
  std::string host_socket;   // told in Welcome
  std::string data_address;  // told in Welcome; empty = no TCP source
  control::PauseMode pause_mode = control::PauseMode::kAbort;
  std::chrono::milliseconds gather{500};  // ... but not longer than this after the first Hello
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

struct CoordinatorEvent {
  TimePoint now{};
  std::variant<PeerMessage, PeerLost, PublishRequested, RollbackRequested, CancelRequested,
               Replaced, CoordinatorTick>
      what;
};

// ---- commands ----

struct SendTo {
  std::string peer;
  control::Envelope envelope;
  control::Message message;
};
// Store the claimed epoch durably before carrying out what follows.
struct StoreEpoch {
  std::uint64_t epoch = 0;
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
struct RollbackDone {
  std::uint64_t request = 0;
  control::RollbackReply reply;
};
// No sidecar will be sent this version any more: its snapshot may go.
struct DropVersion {
  Version version;
};
// This coordinator must not act any more: a higher fence has been seen, or it was replaced.
struct Stopped {
  std::string reason;
};
using CoordinatorCommand = std::variant<SendTo, StoreEpoch, Ready, PhaseEntered, RoundDone,
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
  [[nodiscard]] const control::Fence& fence() const noexcept { return fence_; }
  [[nodiscard]] const Version& target() const noexcept { return target_; }
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
  void on_hello(const PeerMessage& event, const control::Hello& hello);
  void back_in_switch(Member& member, const control::Hello& hello, bool is_new_process);
  [[nodiscard]] std::string why_no_sidecar(const control::Hello& hello) const;
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
  void stop(const std::string& why);
  void answer_error(const std::string& peer, std::string why);
  // Adds to what every Decide forbids, within the bound of the message.
  void withdraw(const std::vector<Version>& versions);
  // The claim.
  // `request`: of the Hello that is answered; 0 asks for one.
  void welcome(Member& member, std::uint64_t request);
  void welcome_back(const PeerMessage& event);
  void claim();
  void finish_claim();
  void leave_withdrawn_target();
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
  void decide(control::DecisionKind kind, const Version& target, const Digest& content = {});
  void send_decide(Member& member);
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
  control::Fence fence_;
  std::uint64_t highest_epoch_ = 0;  // heard of, before the claim
  std::uint64_t seen_step_ = 0;      // highest step of any version heard of
  std::uint64_t used_step_ = 0;      // highest step named under this epoch
  Roster roster_;
  std::uint64_t number_ = 0;  // of the newest decision under fence_
  control::DecisionKind kind_ = control::DecisionKind::kSwitch;
  Version target_;
  Version previous_target_;
  Digest target_content_;  // zero: not known
  Digest previous_content_;
  std::vector<Version> withdrawn_;
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
