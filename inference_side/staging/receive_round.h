// The core of a sidecar as a pure state machine: the fence, the decision and the withdrawn versions
// that it stores before it acts on them; what it is offered, stages, holds and lets go; and the
// switches of its replicas (replica_switch.h), which it owns.
//
// Driving it: give every event to step() with the current time and carry out the commands in order.
// Keep one timer at next_wake() and send Tick when it fires. The port watches for silence
// (CoordinatorLost) and sends heartbeat(); everything else that is sent comes as a Reply.
//
// Without a coordinator it goes on: engines are accepted and brought to the target from what is
// held.
//
// Thread: one. No I/O. Nothing here blocks or throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "inference_side/reload/replica_switch.h"
#include "inference_side/staging/sidecar_record.h"
#include "shared/base/clock.h"
#include "shared/base/liveness.h"
#include "shared/base/switch_deadlines.h"
#include "shared/config/defaults.h"
#include "shared/control/messages.h"

namespace wsync::staging {

struct SidecarOptions {
  std::string name;
  std::string host;
  std::uint32_t pid = 0;
  std::string boot_id;
  std::uint64_t pid_namespace = 0;
  std::string data_address;                                    // of its relay; empty = none
  std::uint64_t versions_held = config::kVersionsHeldDefault;  // at least 2
  // Of a switch for which the coordinator sets none, and of catching up after a restart.
  std::chrono::milliseconds pause{limits::kPauseDeadlineMs};
  std::chrono::milliseconds load{limits::kLoadDeadlineMs};
  reload::SwitchOptions replica;  // for every replica; name and world size come from its ranks
  // Between two Hellos while nobody welcomes it: also how soon a sidecar that was restarted gets
  // its name back once the process before it is known to be gone.
  std::chrono::milliseconds hello_retry{limits::kHelloRetryMs};
};

// ---- events ----

// The port has connected, for the first time or again: a Hello is due.
struct LinkUp {};
// The port has lost the coordinator.
struct CoordinatorLost {};
struct CoordinatorMessage {
  control::Envelope envelope;
  control::Message message;
};
// The answer to Persist.
struct Persisted {
  std::uint64_t token = 0;
  std::string failure;  // not empty: the record on disc is the old one
};
// The answer to CheckLayout. Accepted when it names no problem and no reason.
struct LayoutChecked {
  std::uint64_t round = 0;
  bool layout_unknown = false;
  std::string reason;
  std::vector<control::Problem> problems;
};
// The answers to StartStaging; one of an attempt that was cancelled is dropped.
struct StagingDone {
  std::uint64_t attempt = 0;
  Digest content_digest;  // computed over the bytes held
  std::uint64_t bytes = 0;
  std::uint64_t staging_ns = 0;
};
struct StagingFailed {
  std::uint64_t attempt = 0;
  std::string reason;
  bool source_lost = false;  // what has arrived is kept; a new source can go on from there
};
// The answer to CheckCopy; one of a copy that was released is dropped.
struct CopyChecked {
  std::uint64_t check = 0;
  bool intact = false;  // its bytes still have their content digest
};
using RankEvent =
    std::variant<reload::RankAttached, reload::RankDetached, reload::RankPaused, reload::RankLoaded,
                 reload::LoadNotBegun, reload::RankCommitted, reload::RankResumed>;
// Something about a rank. A RankAttached makes its replica known; world_size is read from it only.
struct ReplicaEvent {
  std::string replica;
  std::uint32_t world_size = 1;
  RankEvent what;
};

struct SidecarEvent {
  TimePoint now{};
  std::variant<LinkUp, CoordinatorLost, CoordinatorMessage, Persisted, LayoutChecked, StagingDone,
               StagingFailed, CopyChecked, ReplicaEvent, reload::Tick>
      what;
};

// ---- commands ----

// To the coordinator.
struct Reply {
  control::Envelope envelope;
  control::Message message;
};
// Write it durably, then give Persisted. Until then no message of the coordinator is acted on.
struct Persist {
  std::uint64_t token = 0;
  SidecarRecord record;
};
// The coordinator's sockets; a same-host hand-over may be tried.
struct Welcomed {
  control::Welcome welcome;
};
// Compare the offered layout with the engines', and the memory with what it needs.
struct CheckLayout {
  std::uint64_t round = 0;
  control::Announce announce;
};
struct StartStaging {
  std::uint64_t attempt = 0;
  control::Announce announce;  // its layout may be empty: the known one is meant
  control::Stage stage;
  bool go_on = false;  // buckets of an earlier attempt are here: fetch what is missing
};
// Give up the version that is arriving; nothing of it is kept.
struct CancelStaging {
  Version version;
};
// The store lets this version go.
struct ReleaseVersion {
  Version version;
};
// A version was let go: send heartbeat() now, so that the coordinator does not choose what is no
// longer here.
struct BeatNow {};
// A replica could not load this version: compute the content digest of the copy anew.
struct CheckCopy {
  std::uint64_t check = 0;
  Version version;
};
// What a replica's switch wants (never Done or CopySuspect: they end here).
struct ForReplica {
  std::string replica;
  reload::SwitchCommand command;
};
using SidecarCommand = std::variant<Reply, Persist, Welcomed, CheckLayout, StartStaging,
                                    CancelStaging, ReleaseVersion, BeatNow, CheckCopy, ForReplica>;

// A complete and verified copy.
struct HeldCopy {
  Version version;
  Digest content;
  std::uint64_t bytes = 0;
  bool was_target = false;  // it was decided here
};

class Sidecar {
 public:
  // `record`: what was on disc, or a default one. `held`: copies that outlived a restart (none in
  // anonymous memory).
  explicit Sidecar(SidecarOptions options, SidecarRecord record = {},
                   std::vector<HeldCopy> held = {});

  // Aborts the process when an invariant breaks.
  [[nodiscard]] std::vector<SidecarCommand> step(const SidecarEvent& event);

  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // For the coordinator; the agent fills in sequence and staged_bytes. Its envelope carries
  // fence().
  [[nodiscard]] control::Heartbeat heartbeat(TimePoint now) const;
  [[nodiscard]] control::StatusReply status(TimePoint now) const;
  [[nodiscard]] const SidecarRecord& record() const noexcept { return record_; }
  [[nodiscard]] const control::Fence& fence() const noexcept { return record_.fence; }
  [[nodiscard]] bool welcomed() const noexcept { return welcomed_; }
  [[nodiscard]] const std::vector<HeldCopy>& held() const noexcept { return held_; }
  [[nodiscard]] const std::map<std::string, reload::ReplicaSwitch>& replicas() const noexcept {
    return replicas_;
  }
  // Of one replica and of every one, as heartbeats, status and metrics tell them.
  [[nodiscard]] control::ReplicaReport report(const reload::ReplicaSwitch& replica,
                                              TimePoint now) const;
  [[nodiscard]] std::vector<control::ReplicaReport> reports(TimePoint now) const;
  // The version that is offered or arriving; none = 0.0.
  [[nodiscard]] Version incoming() const;
  // Messages that were late, duplicate, of another round or of a lower fence.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
  [[nodiscard]] std::string invariants() const;

 private:
  enum class Stage : std::uint8_t { kChecking, kAccepted, kWaiting, kStaging, kStalled, kStaged };
  // The version on its way in.
  struct Incoming {
    std::uint64_t round = 0;
    std::uint64_t request = 0;
    control::Announce announce;
    Stage stage = Stage::kChecking;
    control::Stage asked;
    std::uint64_t attempt = 0;
    bool begun = false;  // some of its bytes may be here
  };

  void on(const LinkUp& event);
  void on(const CoordinatorLost& event);
  void on(const CoordinatorMessage& event);
  void on(const Persisted& event);
  void on(const LayoutChecked& event);
  void on(const StagingDone& event);
  void on(const StagingFailed& event);
  void on(const CopyChecked& event);
  void on(const ReplicaEvent& event);
  void on(const reload::Tick& event);

  void take(const CoordinatorMessage& event);
  void take(const control::Envelope& envelope, const control::Welcome& message);
  void take(const control::Envelope& envelope, const control::Announce& message);
  void take(const control::Envelope& envelope, const control::Stage& message);
  void take(const control::Envelope& envelope, const control::Abort& message);
  void take(const control::Envelope& envelope, const control::Decide& message);
  void take(const control::Envelope& envelope, const control::Leave& message);
  void refuse_offer(const control::Envelope& envelope, const Version& version,
                    const std::string& reason);
  [[nodiscard]] bool names_other_bytes(const control::Decide& decide) const;
  [[nodiscard]] std::string why_not(const control::Decide& decide) const;
  void let_go_undecided();
  void persist(SidecarRecord record, CoordinatorMessage then);
  void raised(const control::Envelope& envelope);
  void decided(const control::Envelope& envelope, const control::Decide& decide);
  void work_queue();
  void try_start();
  bool make_room();
  void reply_staged(const std::string& failure, bool source_lost);
  void drop_incoming();
  void release(Version version);  // by value: it may be of held_ itself
  void tell_staged();
  void tell_withdrawn();
  void switch_step(const std::string& name, const reload::SwitchEvent& event);
  void report_switched();
  void send_hello();
  void reply(std::uint64_t round, std::uint64_t request, control::Message message);
  [[nodiscard]] reload::TargetSet target_event(bool owed) const;
  [[nodiscard]] const HeldCopy* find(const Version& version) const;
  [[nodiscard]] bool is_withdrawn(const Version& version) const;
  [[nodiscard]] bool is_foreign(const control::Fence& fence) const;
  [[nodiscard]] bool needed(const Version& version) const;
  [[nodiscard]] std::vector<Version> held_versions() const;
  [[nodiscard]] std::vector<Version> versions_in_use() const;

  SidecarOptions options_;
  SidecarRecord record_;
  std::vector<HeldCopy> held_;
  std::map<std::string, reload::ReplicaSwitch> replicas_;
  std::optional<Incoming> incoming_;
  std::uint64_t attempts_ = 0;
  std::map<Version, std::uint64_t> checking_;  // held copies that are being checked, and by which
  std::uint64_t checks_ = 0;
  std::uint64_t newest_round_ = 0;  // under record_.fence
  Digest layout_;                   // the last one accepted
  // One record is being written; messages wait for it.
  std::uint64_t token_ = 0;
  std::optional<SidecarRecord> writing_;
  CoordinatorMessage after_write_;
  std::deque<CoordinatorMessage> queue_;
  // The decision whose outcomes are due.
  control::Envelope decision_envelope_;
  control::Decide decision_;
  std::optional<control::Switched> collecting_;
  std::optional<control::Switched> switched_;  // the last one sent
  // A decision that could not be stored. It is not acted on, but what it withdraws is known to be
  // unwanted, so replicas that serve it are not ready until a decision is stored.
  struct Owed {
    std::vector<Version> withdrawn;
    std::string why;
  };
  std::optional<Owed> owed_;
  // A version of which other bytes were decided than are held here; none = 0.0.
  Version other_bytes_;
  bool welcomed_ = false;
  bool hello_due_ = false;       // a copy was lost: ask for it when no outcome is due
  bool let_go_ = false;          // since the last BeatNow
  bool staged_changed_ = false;  // the replicas have to be told
  TimePoint now_{};
  std::optional<TimePoint> hello_at_;
  std::uint64_t hello_request_ = 0;  // of the last Hello, which a Welcome echoes
  control::Fence hello_fence_;       // under which it was said
  std::uint64_t dropped_ = 0;
  std::vector<SidecarCommand> out_;
};

}  // namespace wsync::staging
