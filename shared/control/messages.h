// Every message of wsync as a struct: the contract between its processes. Senders and receivers:
//
//  * sidecar to coordinator: Hello, Accept, Refuse, Staged, Decided, Switched, VerifyReply,
//    PlanReply, TraceAnswer, ForgetReply, RelayReady, Heartbeat, Leave, Error
//  * coordinator to sidecar: Welcome, Announce, Stage, Decide, Turns, Abort, RelayVersion,
//    Verify, Plan, TraceQuestion, Forget, Heartbeat, Leave, Error
//  * command to coordinator: Push, Cancel, Rollback, Promote, Verify, Plan, TraceQuestion, Forget,
//    Status (a sidecar answers Verify, Plan, TraceQuestion, Forget and Status as well)
//  * coordinator to command: Progress, PushReply, CancelReply, RollbackReply, PromoteReply,
//    VerifyReply, PlanReply, TraceAnswer, ForgetReply, StatusReply, Error
//  * engine rank to sidecar: EngineStarting, EngineHello, Prepared, Paused, BucketAck, Loaded,
//    Committed, Resumed, Digests, Scrubbed, Pong, Error
//  * sidecar to engine rank: EngineWelcome, Refuse, Prepare, Release, UnmapArenas,
//    PatchAhead, Pause, Load, BucketReady, Commit, Resume, ReadDigests, Scrub, Abort,
//    Ping
//  * trainer to a coordinator of another process: PublisherHello, RoundRequest, SnapshotEnd,
//    RoundReplaced, RoundGivenUp, Rollback, Status, and Progress, PushReply and CancelReply for a
//    command that was passed on to it
//  * coordinator to a trainer of another process: FleetFacts, RoundPhase, RoundEnd, RoundLoss,
//    VersionDropped, TargetChanged, RollbackReply, StatusReply, Push, Cancel, Error
//  * rank of a trainer to its rank 0: RankHello, RankShards, Snapshotted (with a descriptor); from
//    another host also RankServes, PartSummed, Heartbeat
//  * rank 0 of a trainer to its other ranks: PublishStatus, Error; to one on another host also
//    PartWanted, PartsKept, Heartbeat
//
// Each travels behind an Envelope (codec.h). Versions, fences and decisions are explained in
// README.md of this folder.
#pragma once

#include <type_traits>
#include <utility>
#include <variant>

#include "shared/control/command_messages.h"
#include "shared/control/engine_messages.h"
#include "shared/control/envelope.h"
#include "shared/control/publisher_messages.h"
#include "shared/control/rank_messages.h"
#include "shared/control/sidecar_messages.h"
#include "shared/control/trace_messages.h"

namespace wsync::control {

using AnyMessage =
    std::variant<Hello, Welcome, Announce, Accept, Refuse, Stage, Staged, Decide, Decided, Switched,
                 Abort, Heartbeat, Leave, ErrorReply, Push, PushReply, Progress, Rollback,
                 RollbackReply, Verify, VerifyReply, Status, StatusReply, EngineHello,
                 EngineWelcome, Prepare, Prepared, Release, Pause, Paused, Load, BucketReady,
                 BucketAck, Loaded, Commit, Committed, Resume, Resumed, ReadDigests, Digests,
                 RankHello, RankShards, Snapshotted, PublishStatus, Plan, PlanReply, Cancel,
                 CancelReply, TraceQuestion, TraceAnswer, Ping, Pong, Turns, Promote, PromoteReply,
                 Forget, ForgetReply, UnmapArenas, EngineStarting, ReadVersion, Scrub, Scrubbed,
                 PublisherHello, FleetFacts, RoundRequest, SnapshotEnd, RoundReplaced, RoundGivenUp,
                 RoundPhase, RoundEnd, RoundLoss, VersionDropped, TargetChanged, RelayVersion,
                 RelayReady, PatchAhead, RankServes, PartWanted, PartSummed, PartsKept>;

// Its copies and moves are compiled once, in messages.cc: those of a variant with so many
// alternatives cost the compiler seconds in each file that needs them.
class Message : public AnyMessage {
 public:
  Message() noexcept;
  template <typename T>
    requires requires { std::remove_cvref_t<T>::kType; }
  Message(T&& message)  // NOLINT(google-explicit-constructor): as that of a variant
      : AnyMessage(std::in_place_type<std::remove_cvref_t<T>>, std::forward<T>(message)) {}
  Message(const Message& other);
  Message(Message&& other) noexcept;
  Message& operator=(const Message& other);
  Message& operator=(Message&& other) noexcept;
  ~Message();
};

}  // namespace wsync::control
