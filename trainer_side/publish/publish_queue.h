// PublishQueue: decides what becomes of each publish of a trainer, from the request to the answer.
//
// Publishes take their snapshots one after the other. The coordinator runs one round at a time: one
// publish may wait for it with its snapshot taken, and a newer one replaces it. The queue follows
// each publish through its states, bounds its waits, names its version and says what is answered to
// whom. Only the coordinator begins and ends rounds; the queue checks that the ends which it
// reports are legal.
//
// Driving it: call the function of what has happened, and execute the commands that it returns in
// their order. Call advance() after each change of the coordinator, and some times per second for
// the deadlines. An event that the transition table has no row for is refused with kInternal and
// changes nothing.
//
// Thread: one. Pure: no I/O, and the clock comes with each call.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"
#include "shared/control/messages.h"

namespace wsync::publish {

enum class JobState : std::uint8_t {
  kQueued,        // waits for its turn, for sidecars and for the claim of the fence
  kSnapshotting,  // its source is being opened and copied
  kStopping,      // cancelled while it was snapshotting; the copy has not returned yet
  kWaiting,       // its snapshot is with the coordinator, which has not begun its round
  kAnnouncing,    // in its round
  kStaging,
  kSwitching,  // decided
  // Ends; a publish that has ended is forgotten.
  kServed,
  kFailed,
  kCancelled,
  kSuperseded,  // a newer one has taken its place while it waited
};
[[nodiscard]] std::string_view job_state_name(JobState state) noexcept;
[[nodiscard]] constexpr bool has_ended(JobState state) noexcept {
  return state >= JobState::kServed;
}
// Whether the transition table has a row from one state to the other.
[[nodiscard]] bool is_legal(JobState from, JobState to) noexcept;
// The transition table of one publish, for the page of the protocol.
[[nodiscard]] TransitionTable publish_transitions();

// What the queue asks of the coordinator. The answers may change between any two calls.
class CoordinatorFacts {
 public:
  virtual ~CoordinatorFacts() = default;
  // Why the coordinator does nothing any more; none while it acts.
  [[nodiscard]] virtual std::optional<Error> why_stopped() const = 0;
  // What every publish has to wait for before its snapshot; none when a snapshot may begin.
  [[nodiscard]] virtual std::optional<std::string> why_not_ready() const = 0;
  // The name of the next version; `step` 0: the next free one. Errors: Coordinator::next_version().
  [[nodiscard]] virtual Result<Version> next_version(std::uint64_t step) const = 0;
  // Whether the coordinator has an update of this version, decided or not; 0.0: whether it runs
  // any.
  [[nodiscard]] virtual bool has_update(const Version& version) const = 0;
};

// ---- commands ----

// Open the source of this publish and copy it; report snapshot_ended().
struct BeginSnapshot {
  std::uint64_t request = 0;
  Version version;
  TimePoint deadline{};  // of the wait for an arena, and of the copy
};
// Ask the snapshot to stop. It still reports snapshot_ended().
struct StopSnapshot {
  std::uint64_t request = 0;
};
// Give the snapshot to the coordinator, which reports phase_entered() and round_ended().
struct RequestRound {
  std::uint64_t request = 0;
  TimePoint deadline{};  // of the whole publish
};
// Answer who has asked for this publish. The queue has forgotten it.
struct EndPublish {
  std::uint64_t request = 0;
  JobState end = JobState::kFailed;
  // It was cancelled, or has failed before it became a round.
  std::optional<Error> error;
  control::PushReply reply;
  bool had_round = false;  // the coordinator has reported this end
};
// Tell the people who run this fleet that a publish waits, and for what.
struct ReportWait {
  std::string text;
};
using QueueCommand =
    std::variant<BeginSnapshot, StopSnapshot, RequestRound, EndPublish, ReportWait>;

// How the coordinator has ended a round, or has refused to begin it.
struct RoundEnd {
  bool superseded = false;
  bool cancelled = false;
  control::PushReply reply;
};

class PublishQueue {
 public:
  using Commands = std::vector<QueueCommand>;
  // `facts` outlives the queue. `deadline` bounds each publish from publish() to its end.
  PublishQueue(const CoordinatorFacts& facts, std::chrono::milliseconds deadline)
      : facts_(facts), deadline_(deadline) {}

  // A new publish. Requests grow, and each is used once: kInternal otherwise. `step` 0: the next
  // free one. Call advance() next.
  [[nodiscard]] Result<> publish(std::uint64_t request, std::uint64_t step, TimePoint now);
  // Begins the next snapshot when no other is being taken and the coordinator is ready; ends the
  // publishes that can no longer begin.
  [[nodiscard]] Result<Commands> advance(TimePoint now);
  // Ends the publish of this step if none of its weights has been read. `weights_read`: whether the
  // snapshot that is being taken has read any. Any other publish goes on.
  [[nodiscard]] Result<Commands> give_up(std::uint64_t step, bool weights_read);
  // A request to cancel a version; 0.0: the one in a round, else the one whose snapshot is being
  // taken, else the next in the queue.
  struct Cancelled {
    std::optional<control::CancelReply> reply;  // none: the coordinator has to be asked
    Commands commands;
  };
  [[nodiscard]] Result<Cancelled> cancel(const Version& version);
  // The snapshot of BeginSnapshot is complete, or has failed.
  [[nodiscard]] Result<Commands> snapshot_ended(std::uint64_t request,
                                                const std::optional<Error>& failure);
  // The round of this publish is in a phase from now on; kSnapshot is none of a round.
  [[nodiscard]] Result<> phase_entered(std::uint64_t request, control::ProgressPhase phase);
  [[nodiscard]] Result<Commands> round_ended(std::uint64_t request, RoundEnd end);

  // None: no such publish, or it has ended.
  [[nodiscard]] std::optional<JobState> state(std::uint64_t request) const;
  // The publish whose snapshot is being taken, stopping or not.
  [[nodiscard]] std::optional<std::uint64_t> snapshotting() const;
  // How many wait for their snapshot.
  [[nodiscard]] std::size_t queued() const noexcept;

  // The first broken invariant as kInternal. At most one snapshot is being taken, at most one
  // publish is in a round, and no older one waits then; a publish has a version exactly when its
  // snapshot has begun; versions grow with requests, so that none names two byte strings.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Job {
    std::uint64_t step = 0;  // as asked for
    JobState state = JobState::kQueued;
    Version version;  // once its snapshot has begun
    TimePoint begun{};
    TimePoint deadline{};
    bool wait_reported = false;
  };
  using Jobs = std::map<std::uint64_t, Job>;

  [[nodiscard]] Result<Jobs::iterator> find(std::uint64_t request);
  [[nodiscard]] Jobs::iterator first_queued();
  // The only place that changes a state.
  [[nodiscard]] static Result<> move(Jobs::iterator job, JobState to);
  [[nodiscard]] Result<> fail_job(Jobs::iterator job, const Error& why, Commands& out);
  [[nodiscard]] Result<bool> advance_one(Jobs::iterator job, TimePoint now, Commands& out);
  [[nodiscard]] Result<Version> name_version(std::uint64_t step) const;

  const CoordinatorFacts& facts_;
  const std::chrono::milliseconds deadline_;
  Jobs jobs_;          // by request; all that have not ended
  Version requested_;  // the newest version that was given to the coordinator
};

}  // namespace wsync::publish
