// PublishQueue: decides what happens to each publish of a trainer, from the request to the answer.
//
// Publishes take their snapshots one after the other. The coordinator runs one round at a time: one
// publish with a complete snapshot may wait for it, and a newer one replaces it. If a round may
// begin while the snapshot is copied, and a sidecar receives copies, a publish streams: its round
// begins at once, and is given the content digest at the end of the snapshot. The queue tracks the
// state of each publish, limits its waits, names its version and decides the answers. Only the
// coordinator begins and ends rounds; the queue checks that the reported ends are legal.
//
// Usage: call the function for each event, and execute the returned commands in order. Call
// advance() after each change of the coordinator, and several times per second for the deadlines.
// An event without a row in the transition table is refused with kInternal and changes nothing.
//
// Thread: confined to one thread. Pure: no I/O, and the time is an argument of each call.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "trainer_side/publish/job_state.h"

namespace wsync::publish {

// What the queue asks the coordinator. The answers may change between any two calls.
class CoordinatorFacts {
 public:
  virtual ~CoordinatorFacts() = default;
  // Why the coordinator has stopped; std::nullopt while it is active.
  [[nodiscard]] virtual std::optional<Error> why_stopped() const = 0;
  // What every publish must wait for before its round; std::nullopt if a round may begin. One that
  // is kept takes its snapshot at once, because its caller waits for that.
  [[nodiscard]] virtual std::optional<std::string> why_not_ready() const = 0;
  // Why a round would find too few engines; std::nullopt if there are enough. A publish that is
  // kept waits for them; another one fails, and the requester decides.
  [[nodiscard]] virtual std::optional<std::string> why_too_few_engines() const = 0;
  // The name of the next version. `step` 0: the next free step. Errors as
  // Coordinator::next_version().
  [[nodiscard]] virtual Result<Version> next_version(std::uint64_t step) const = 0;
  // Whether the coordinator has an update of this version, decided or not; with 0.0, whether any
  // update is running.
  [[nodiscard]] virtual bool has_update(const Version& version) const = 0;
  // Whether a round that is requested before its snapshot is complete begins at once, and some
  // sidecar receives its first bytes earlier by that.
  [[nodiscard]] virtual bool may_stream() const = 0;
};

// ---- commands ----

// Open and copy the source of this publish, then report snapshot_ended().
struct BeginSnapshot {
  std::uint64_t request = 0;
  Version version;       // epoch 0: RequestRound gives its name, and `step` is the requested one
  TimePoint deadline{};  // of the wait for an arena, and of the copy
};
// Stop the snapshot. It must still report snapshot_ended().
struct StopSnapshot {
  std::uint64_t request = 0;
};
// Keep the snapshot until RequestRound, and notify the requester that it has been taken. `why`:
// what its round waits for. Sent again when that changes. Also sent when the round has lost every
// sidecar: keep the snapshot that it had.
struct HoldSnapshot {
  std::uint64_t request = 0;
  std::string why;
};
// Give the snapshot this version if it has another one, and pass it to the coordinator, which
// reports phase_entered() and round_ended().
struct RequestRound {
  std::uint64_t request = 0;
  Version version;
  TimePoint deadline{};  // of the whole publish
  // The snapshot is being taken: serve its buckets, those that are complete now and the others as
  // they become so. CompleteRound or AbandonRound follows, unless the round ends first.
  bool streams = false;
};
// The snapshot of a publish that streams is complete: pass its content digest to the coordinator.
struct CompleteRound {
  std::uint64_t request = 0;
  Version version;
};
// The snapshot of a publish that streams has failed or was stopped: the coordinator must end its
// round for this reason.
struct AbandonRound {
  std::uint64_t request = 0;
  Version version;
  Error why;
};
// Answer the requester of this publish. The queue has removed it.
struct EndPublish {
  std::uint64_t request = 0;
  JobState end = JobState::kFailed;
  // It was cancelled, its snapshot has failed, or it has failed before it became a round.
  std::optional<Error> error;
  control::PushReply reply;
  bool had_round = false;  // the coordinator has reported this end
};
// The coordinator must end this publish as superseded, because a newer one needs its memory. It is
// still waiting for its round.
struct ReplaceWaiting {
  std::uint64_t request = 0;
  Version version;  // of that publish
  Version by;
};
// Notify the operators that a publish waits, with the reason.
struct ReportWait {
  std::string text;
};
using QueueCommand =
    std::variant<BeginSnapshot, StopSnapshot, HoldSnapshot, RequestRound, CompleteRound,
                 AbandonRound, EndPublish, ReplaceWaiting, ReportWait>;

// How the coordinator has ended a round, or has refused to begin it.
struct RoundEnd {
  bool superseded = false;
  bool cancelled = false;
  control::PushReply reply;
};

// This class has more than 25 methods: each event of a publish has its own, and each wait.
class PublishQueue {
 public:
  using Commands = std::vector<QueueCommand>;
  // `facts` must outlive the queue. `deadline` limits each publish from publish() to its end.
  PublishQueue(const CoordinatorFacts& facts, std::chrono::milliseconds deadline)
      : facts_(facts), deadline_(deadline) {}

  // Adds a publish. Request numbers must increase; otherwise returns kInternal. `step` 0: the next
  // free step. `is_kept`: while the coordinator is not ready, its snapshot is taken and kept
  // without a limit, until a newer one replaces it; otherwise its snapshot waits, until the
  // deadline. Call advance() next.
  [[nodiscard]] Result<> publish(std::uint64_t request, std::uint64_t step, TimePoint now,
                                 bool is_kept = false);
  // Begins the next snapshot if none is being taken, the round of a held snapshot if the
  // coordinator is ready, and that of a snapshot that is being copied if it may stream now. Ends
  // publishes that can no longer begin.
  [[nodiscard]] Result<Commands> advance(TimePoint now);
  // Ends the publish of this step if none of its weights has been read. `weights_read`: whether the
  // current snapshot has read any. All other publishes continue.
  [[nodiscard]] Result<Commands> give_up(std::uint64_t step, bool weights_read);
  // A request to cancel a version. 0.0 means the one in a round, otherwise the one whose snapshot
  // is being taken, otherwise the next in the queue.
  struct Cancelled {
    std::optional<control::CancelReply> reply;  // std::nullopt: ask the coordinator
    Commands commands;
  };
  [[nodiscard]] Result<Cancelled> cancel(const Version& version);
  // The snapshot of this publish waits for memory. An older publish that waits for its round is
  // replaced now, because it would be replaced in any case when this snapshot is complete. So is
  // one that is held. Does nothing if there is none.
  [[nodiscard]] Result<Commands> memory_awaited(std::uint64_t request);
  // The same for a version that its trainer writes in place, before its publish is requested under
  // this step (0: the next free one).
  [[nodiscard]] Result<Commands> draft_awaits_memory(std::uint64_t step);
  // The copy of the snapshot of BeginSnapshot begins: its layout is known, and it has an arena. The
  // publish streams as soon as it may, which a round before it can delay; its round is then
  // requested.
  [[nodiscard]] Result<Commands> copy_began(std::uint64_t request);
  // The snapshot of BeginSnapshot is complete or has failed.
  [[nodiscard]] Result<Commands> snapshot_ended(std::uint64_t request,
                                                const std::optional<Error>& failure);
  // The round of this publish enters a phase. kSnapshot is not a phase of a round.
  [[nodiscard]] Result<> phase_entered(std::uint64_t request, control::ProgressPhase phase);
  [[nodiscard]] Result<Commands> round_ended(std::uint64_t request, RoundEnd end);
  // The round of this publish has lost every sidecar before its decision, or could not begin
  // without one. The publish is kept, and its snapshot is held until there are enough sidecars
  // again.
  [[nodiscard]] Result<Commands> round_lost(std::uint64_t request, const std::string& why);

  // std::nullopt: there is no such publish, or it has ended.
  [[nodiscard]] std::optional<JobState> state(std::uint64_t request) const;
  // What the round of this publish waits for; std::nullopt if the publish is not held.
  [[nodiscard]] std::optional<std::string> waits_for(std::uint64_t request) const;
  // The publish whose snapshot is being taken, even if it is stopping.
  [[nodiscard]] std::optional<std::uint64_t> snapshotting() const;
  // Number of publishes that wait for their snapshot.
  [[nodiscard]] std::size_t queued() const noexcept;

  // Returns kInternal with the first broken invariant. At most one snapshot is being taken. At most
  // one publish is in a round, and then no older one waits. At most one snapshot is held. A publish
  // that the coordinator has received has a version. Versions increase with requests, so that no
  // version names two different contents.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Job {
    std::uint64_t step = 0;  // as requested
    JobState state = JobState::kQueued;
    Version version;  // set when its snapshot has begun
    TimePoint begun{};
    TimePoint deadline{};
    bool is_kept = false;
    bool had_round = false;  // with the complete snapshot, so that it keeps its version
    bool is_copied = false;  // the copy of its snapshot has begun, and it may stream
    std::string why;         // what its round waits for
    bool wait_reported = false;
    JobState round = JobState::kWaiting;  // of one that streams: how far its round is
    std::optional<RoundEnd> end;          // its round has ended before its snapshot
    std::optional<Error> failure;         // of the snapshot of one that streams
  };
  using Jobs = std::map<std::uint64_t, Job>;

  [[nodiscard]] Result<Jobs::iterator> find(std::uint64_t request);
  [[nodiscard]] Jobs::iterator first_queued();
  // The only place that changes a state.
  [[nodiscard]] static Result<> move(Jobs::iterator job, JobState to);
  [[nodiscard]] Result<> fail_job(Jobs::iterator job, const Error& why, Commands& out);
  // Returns whether the publish has left the queue.
  [[nodiscard]] Result<bool> begin_snapshot(Jobs::iterator job, TimePoint now, Commands& out);
  // A publish that is not kept waits in the queue. Returns whether it has ended.
  [[nodiscard]] Result<bool> wait_queued(Jobs::iterator job, const std::string& reason,
                                         TimePoint now, Commands& out);
  void hold(Jobs::iterator job, std::string why, Commands& out);
  [[nodiscard]] Result<> release_held(TimePoint now, Commands& out);
  // What the round of this publish must wait for.
  [[nodiscard]] std::optional<std::string> why_held(const Job& job) const;
  [[nodiscard]] Result<> request_round(Jobs::iterator job, Commands& out);
  // Begins the round of a publish whose snapshot is being copied, if it may.
  [[nodiscard]] Result<> begin_stream(Jobs::iterator job, Commands& out);
  [[nodiscard]] bool may_stream(Jobs::const_iterator job) const;
  // The snapshot of a publish that streams has ended.
  [[nodiscard]] Result<> end_streaming(Jobs::iterator job, const std::optional<Error>& failure,
                                       Commands& out);
  [[nodiscard]] Result<> end_round(Jobs::iterator job, RoundEnd end, Commands& out);
  // Ends an older publish that is held, because this one replaces it.
  [[nodiscard]] Result<> replace_held(std::uint64_t request, Commands& out);
  [[nodiscard]] Jobs::iterator held();
  [[nodiscard]] Result<Version> name_version(std::uint64_t step) const;

  const CoordinatorFacts& facts_;
  const std::chrono::milliseconds deadline_;
  Jobs jobs_;  // by request; all that have not ended
  // The newest version that was given to the coordinator with its snapshot, or that this queue has
  // numbered itself.
  Version taken_;
  Version named_;  // the newest version whose snapshot has begun, whatever became of it
};

}  // namespace wsync::publish
