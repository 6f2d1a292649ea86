// The envelope of every message, and the parts that several groups of messages share.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/control/capability.h"
#include "shared/control/fleet_id.h"
#include "shared/weights/version.h"

namespace wsync::control {

inline constexpr std::uint32_t kMagic = 0x434e5357;  // "WSNC"
inline constexpr std::uint16_t kProtocolVersion = 19;

// Prevents a stale coordinator from changing anything. Within one fleet, fences are compared as the
// pair (epoch, run id), epoch first. Fences of different fleets are never compared: a receiver
// refuses the fence of another fleet before it looks at the epoch.
struct Fence {
  std::uint64_t epoch = 0;
  std::array<std::uint64_t, 2> run_id{};  // 128 random bits of one coordinator process
  FleetId fleet;                          // zero: the sender belongs to no fleet yet
  friend bool operator==(const Fence&, const Fence&) = default;
  friend auto operator<=>(const Fence&, const Fence&) = default;
};

// Identifies a decision. The number grows with every decision under one fence; 0 = no decision yet.
// Ordered as (fence, number).
struct Decision {
  Fence fence;
  std::uint64_t number = 0;
  [[nodiscard]] bool none() const noexcept { return number == 0; }
  friend bool operator==(const Decision&, const Decision&) = default;
  friend auto operator<=>(const Decision&, const Decision&) = default;
};

enum class MessageType : std::uint16_t {
  kHello = 1,
  kWelcome,
  kAnnounce,
  kAccept,
  kRefuse,
  kStage,
  kStaged,
  kDecide,
  kDecided,
  kSwitched,
  kAbort,
  kHeartbeat,
  kLeave,
  kError,
  kPush,
  kPushReply,
  kProgress,
  kRollback,
  kRollbackReply,
  kVerify,
  kVerifyReply,
  kStatus,
  kStatusReply,
  kEngineHello,
  kEngineWelcome,
  kPrepare,
  kPrepared,
  kRelease,
  kPause,
  kPaused,
  kLoad,
  kBucketReady,
  kBucketAck,
  kLoaded,
  kCommit,
  kCommitted,
  kResume,
  kResumed,
  kReadDigests,
  kDigests,
  kRankHello,
  kRankShards,
  kSnapshotted,
  kPublishStatus,
  kPlan,
  kPlanReply,
  kCancel,
  kCancelReply,
  kTraceQuestion,
  kTraceAnswer,
  kPing,
  kPong,
  kTurns,
  kPromote,
  kPromoteReply,
  kForget,
  kForgetReply,
  kUnmapArenas,
  kEngineStarting,
  kReadVersion,
  kScrub,
  kScrubbed,
  kPublisherHello,
  kFleetFacts,
  kRoundRequest,
  kSnapshotEnd,
  kRoundReplaced,
  kRoundGivenUp,
  kRoundPhase,
  kRoundEnd,
  kRoundLoss,
  kVersionDropped,
  kTargetChanged,
  kRelayVersion,
  kRelayReady,
  kPatchAhead,
  kRankServes,
  kPartWanted,
  kPartSummed,
  kPartsKept,
};
inline constexpr MessageType kLastMessageType = MessageType::kPartsKept;

// Precedes every message, with a fixed size on the wire (kEnvelopeBytes in codec.h) plus the
// replica's name.
struct Envelope {
  Fence fence;                // the sender's view; ignored for changes if lower than the receiver's
  std::uint64_t round = 0;    // chosen by the coordinator; a reply echoes it
  std::uint64_t request = 0;  // chosen by the requester; a reply echoes it
  std::string replica;        // empty: not about one replica. At most limits::kReplicaNameBytes
  std::uint32_t rank = 0;     // of that replica
  // The message has the fields of these, which its receiver has named as its own. A Push has those
  // of its sender: a receiver that lacks one answers that it cannot read the message.
  Capabilities capabilities = 0;
};

// ---- shared parts ----

enum class ReplicaState : std::uint8_t {
  kAbsent,   // at least one rank is not attached
  kServing,  // serves `version` on every rank
  kBehind,   // serves a version older than the target; its weights are intact
  kPaused,   // weights are intact, not serving
  kLoading,  // during its switch
  kTainted,  // its memory matches no version; never routed to
};
enum class RankState : std::uint8_t { kLoading, kServing, kPaused, kLoaded, kTainted };

// Where a replica stands in a decision whose replicas switch in turns
// (DecisionKind::kSwitchInTurns, kSwitchCanary).
enum class ReplicaTurn : std::uint8_t {
  kNone,     // it needs no turn: it serves the target, cannot load it now, or has stopped already
  kWaiting,  // it serves an older version, and pauses as soon as it has a turn
  kHeld,     // it switches; its turn ends with the switch
};

// How the weights of a version came into the memory of a replica.
enum class LoadKind : std::uint8_t {
  kNone,   // it has loaded nothing
  kFull,   // all bytes
  kPatch,  // only those that differ from the version before
};

// Whether the ranks of a replica have a controller apart from them, and whether it is attached.
enum class ControllerState : std::uint8_t { kNone, kMissing, kAttached };

struct ReplicaReport {
  std::string replica;
  std::uint32_t world_size = 1;  // its controller counts as a rank, here and in ranks_attached
  std::uint32_t ranks_attached = 0;
  ReplicaState state = ReplicaState::kAbsent;
  bool ready = false;  // requests may be routed to it
  Version version;     // active on every rank; 0.0 = none
  std::string reason;  // why it is not ready, in one sentence
  // During a switch: bytes of the new version that its ranks report as loaded. Otherwise 0.
  std::uint64_t loaded_bytes = 0;
  std::uint64_t paused_ns = 0;  // duration of its last pause; 0 = never paused
  ReplicaTurn turn = ReplicaTurn::kNone;
  // The load that was committed last: how, the bytes that its ranks have written, and the bytes of
  // all their tensors.
  LoadKind last_load = LoadKind::kNone;
  std::uint64_t last_written_bytes = 0;
  std::uint64_t last_load_bytes = 0;
  // All bytes of its ranks were compared with this version, by loading all of them or by a scrub,
  // so many nanoseconds ago. 0.0: not by this sidecar process.
  Version proved;
  std::uint64_t proved_ago_ns = 0;
  std::string not_scrubbed;  // why its memory is not read again, in one sentence; empty: it is
  // How often a scrub has found bytes that are not those of the version, since the sidecar began,
  // and the last one: rank, tensor, version, expected and found.
  std::uint64_t mismatches = 0;
  std::string last_mismatch;
  ControllerState controller = ControllerState::kNone;
};

// How a version came to a sidecar that does not map the memory of its trainer.
struct CopyReport {
  Version version;  // the last one; 0.0: none has come yet, and the rest is void
  Version base;     // only what differs from this version came, where that is less; 0.0: all came
  std::uint64_t bytes = 0;            // of the version
  std::uint64_t travelled_bytes = 0;  // that have come
};

enum class SwitchOutcome : std::uint8_t { kCommitted, kBehind, kRolledBack, kTainted, kFailed };

// The result of the switch of one replica. Times in nanoseconds.
struct ReplicaOutcome {
  std::string replica;
  SwitchOutcome outcome = SwitchOutcome::kFailed;
  Version version;              // active version after the switch
  std::string reason;           // when committed: empty, or why its patch was not used
  std::uint64_t wait_ns = 0;    // PAUSE due to the last rank's PAUSED
  std::uint64_t paused_ns = 0;  // last rank's PAUSED to RESUME sent
  std::uint64_t load_ns = 0;    // LOAD sent to the last rank's LOADED
  std::uint64_t bytes = 0;      // loaded, summed over the ranks
  // Every rank has given its memory away and serves nothing. It loads the target when it resumes.
  bool is_suspended = false;
};

// One mismatch between the trainer's layout and an engine's.
enum class ProblemKind : std::uint8_t { kMissing, kExtra, kDtype, kShape, kRange, kMemory, kOther };
struct Problem {
  ProblemKind kind = ProblemKind::kOther;
  std::string tensor;
  std::string detail;   // expected and found, in one sentence
  std::string nearest;  // nearest name on the other side; empty if none is near
  // What the engine expects and what is published, as "BF16 [64, 32]". Empty: that side does not
  // have the tensor, or the problem is neither its dtype nor its shape.
  std::string expected;
  std::string found;
};

}  // namespace wsync::control
