#include "trainer_side/publish/job_state.h"

#include <array>

namespace wsync::publish {
namespace {

constexpr std::array<Transition<JobState>, 42> kTransitions = {{
    {JobState::kQueued, "its turn has come, and the coordinator is ready or it is kept",
     JobState::kSnapshotting, "begin the snapshot"},
    {JobState::kQueued,
     "its deadline has passed, its step was used, it is abandoned, or the coordinator has stopped",
     JobState::kFailed, "answer with the reason"},
    {JobState::kQueued, "cancelled on request", JobState::kCancelled, "answer"},
    {JobState::kSnapshotting, "the snapshot is complete", JobState::kWaiting,
     "name the version, give it to the coordinator"},
    {JobState::kSnapshotting,
     "the snapshot is complete and kept, and the coordinator is not ready or engines are missing",
     JobState::kHeld, "keep the snapshot"},
    {JobState::kSnapshotting, "cancelled on request", JobState::kStopping, "stop the snapshot"},
    {JobState::kSnapshotting, "the snapshot has failed, or the coordinator has stopped",
     JobState::kFailed, "answer with the reason"},
    {JobState::kSnapshotting, "abandoned before a weight was read, and it has stopped",
     JobState::kCancelled, "answer"},
    {JobState::kHeld, "the coordinator is ready", JobState::kWaiting,
     "name the version, give it to the coordinator"},
    {JobState::kHeld, "a newer snapshot is complete, or needs its memory", JobState::kSuperseded,
     "answer"},
    {JobState::kHeld,
     "its step was used, another epoch has been claimed since its last round, or the coordinator "
     "has stopped",
     JobState::kFailed, "answer with the reason"},
    {JobState::kHeld, "cancelled on request", JobState::kCancelled, "answer"},
    {JobState::kStopping, "the snapshot has returned, complete or not", JobState::kCancelled,
     "answer"},
    {JobState::kStopping,
     "the snapshot has returned after its round has failed, or the coordinator has stopped",
     JobState::kFailed, "answer with the reason"},
    {JobState::kStopping, "the snapshot has returned after a newer publish has replaced its round",
     JobState::kSuperseded, "answer"},
    {JobState::kSnapshotting, "it is being copied, and may stream now", JobState::kStreaming,
     "give it to the coordinator without its content digest"},
    {JobState::kStreaming, "the snapshot has ended before the round has begun", JobState::kWaiting,
     "give the coordinator the content digest, or the reason"},
    {JobState::kStreaming, "the snapshot has ended while the round is announced",
     JobState::kAnnouncing, "give the coordinator the content digest, or the reason"},
    {JobState::kStreaming, "the snapshot has ended while bytes are moving", JobState::kStaging,
     "give the coordinator the content digest, or the reason"},
    {JobState::kStreaming, "its round has ended", JobState::kStopping, "stop the snapshot"},
    {JobState::kStreaming, "its round enters a phase", JobState::kStreaming, "note it"},
    {JobState::kStreaming, "its round has lost every sidecar, and it is kept",
     JobState::kSnapshotting, "go on with the snapshot, which no longer streams"},
    {JobState::kWaiting, "no sidecar is connected when its round is to begin, and it is kept",
     JobState::kHeld, "keep the snapshot"},
    {JobState::kAnnouncing, "its round has lost every sidecar, and it is kept", JobState::kHeld,
     "keep the snapshot"},
    {JobState::kStaging, "its round has lost every sidecar, and it is kept", JobState::kHeld,
     "keep the snapshot"},
    {JobState::kWaiting, "its round begins", JobState::kAnnouncing, ""},
    {JobState::kWaiting, "a newer publish replaces it", JobState::kSuperseded, "answer"},
    {JobState::kWaiting, "the coordinator refuses it, or its deadline has passed",
     JobState::kFailed, "answer with the reason"},
    {JobState::kWaiting, "cancelled on request", JobState::kCancelled, "answer"},
    {JobState::kAnnouncing, "every sidecar of the round has accepted", JobState::kStaging, ""},
    {JobState::kAnnouncing, "the round is aborted", JobState::kFailed, "answer with the reason"},
    {JobState::kAnnouncing, "cancelled on request", JobState::kCancelled, "answer"},
    {JobState::kStaging, "the decision is stored", JobState::kSwitching, ""},
    {JobState::kStaging, "the round is aborted", JobState::kFailed, "answer with the reason"},
    {JobState::kStaging, "cancelled on request", JobState::kCancelled, "answer"},
    {JobState::kSwitching, "every replica serves it", JobState::kServed, "answer"},
    {JobState::kSwitching, "a replica does not serve it, or the coordinator has stopped",
     JobState::kFailed, "answer with the reason"},
    // Events that change no state.
    {JobState::kQueued, "the coordinator is not ready", JobState::kQueued,
     "report it once, after 2 s"},
    {JobState::kHeld, "the coordinator is not ready, or engines are missing", JobState::kHeld,
     "report it once, after 2 s"},
    {JobState::kSnapshotting, "abandoned before a weight was read", JobState::kSnapshotting,
     "stop the snapshot"},
    {JobState::kSnapshotting, "its snapshot waits for memory", JobState::kSnapshotting,
     "replace the publish that waits for its round"},
    {JobState::kStopping, "cancelled on request again", JobState::kStopping, "answer as before"},
}};

}  // namespace

bool is_snapshotting(JobState state) noexcept {
  return state == JobState::kSnapshotting || state == JobState::kStopping ||
         state == JobState::kStreaming;
}

bool is_in_round(JobState state) noexcept {
  return state == JobState::kAnnouncing || state == JobState::kStaging ||
         state == JobState::kSwitching || state == JobState::kStreaming;
}

JobState state_of(control::ProgressPhase phase) noexcept {
  switch (phase) {
    case control::ProgressPhase::kAnnounce:
      return JobState::kAnnouncing;
    case control::ProgressPhase::kStage:
      return JobState::kStaging;
    case control::ProgressPhase::kSwitch:
      return JobState::kSwitching;
    case control::ProgressPhase::kSnapshot:
      break;
  }
  return JobState::kWaiting;  // not a phase of a round: no row leads there from a round
}

std::string_view job_state_name(JobState state) noexcept {
  switch (state) {
    case JobState::kQueued:
      return "queued";
    case JobState::kSnapshotting:
      return "snapshotting";
    case JobState::kStopping:
      return "stopping";
    case JobState::kHeld:
      return "held";
    case JobState::kWaiting:
      return "waiting";
    case JobState::kAnnouncing:
      return "announcing";
    case JobState::kStaging:
      return "staging";
    case JobState::kSwitching:
      return "switching";
    case JobState::kStreaming:
      return "streaming";
    case JobState::kServed:
      return "served";
    case JobState::kFailed:
      return "failed";
    case JobState::kCancelled:
      return "cancelled";
    case JobState::kSuperseded:
      return "superseded";
  }
  return "unknown";
}

bool is_legal(JobState from, JobState to) noexcept {
  return allows<JobState>(kTransitions, from, to);
}

TransitionTable publish_transitions() {
  return describe<JobState>("PublishQueue", "One publish, from the request to its answer.",
                            kTransitions, job_state_name);
}

}  // namespace wsync::publish
