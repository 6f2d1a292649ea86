// Every message of wsync as a struct: the contract of its processes. Who sends what to whom:
//
//  * sidecar to coordinator: Hello, Accept, Refuse, Staged, Decided, Switched, VerifyReply,
//    PlanReply, TraceAnswer, Heartbeat, Leave, Error
//  * coordinator to sidecar: Welcome, Announce, Stage, Decide, Abort, Verify, Plan, TraceQuestion,
//    Heartbeat, Leave, Error
//  * command to coordinator: Push, Cancel, Rollback, Verify, Plan, TraceQuestion, Status (a sidecar
//    answers Verify, Plan, TraceQuestion and Status as well)
//  * coordinator to command: Progress, PushReply, CancelReply, RollbackReply, VerifyReply,
//    PlanReply, TraceAnswer, StatusReply, Error
//  * engine rank to sidecar: EngineHello, Prepared, Paused, BucketDone, Loaded, Committed, Resumed,
//    Digests, Error
//  * sidecar to engine rank: EngineWelcome, Refuse, Prepare, Release, Pause, Load, BucketReady,
//    Commit, Resume, ReadDigests, Abort
//  * rank of a trainer to its rank 0: RankHello, RankShards, Snapshotted (with a descriptor)
//  * rank 0 of a trainer to its other ranks: PublishStatus, Error
//
// Each travels behind an Envelope (codec.h). Versions, fences and decisions are explained in
// README.md of this folder.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/weights/version.h"

namespace wsync::control {

inline constexpr std::uint32_t kMagic = 0x434e5357;  // "WSNC"
inline constexpr std::uint16_t kProtocolVersion = 2;

// What keeps an old coordinator from changing anything. Compared as a pair, epoch first.
struct Fence {
  std::uint64_t epoch = 0;
  std::array<std::uint64_t, 2> run_id{};  // 128 random bits of one coordinator process
  friend bool operator==(const Fence&, const Fence&) = default;
  friend auto operator<=>(const Fence&, const Fence&) = default;
};

// Grows with every decision under one fence; 0 = no decision yet. Ordered as (fence, number).
struct Decision {
  Fence fence;
  std::uint64_t number = 0;
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
  kBucketDone,
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
};
inline constexpr MessageType kLastMessageType = MessageType::kTraceAnswer;

// What precedes every message; fixed size on the wire (kEnvelopeBytes in codec.h).
struct Envelope {
  Fence fence;                // the sender's view; a lower one than the receiver's changes nothing
  std::uint64_t round = 0;    // of the coordinator; a reply echoes it
  std::uint64_t request = 0;  // chosen by the asker; a reply echoes it
  std::string replica;        // empty: not about one replica. At most limits::kReplicaNameBytes
  std::uint32_t rank = 0;     // of that replica
};

// ---- shared parts ----

enum class ReplicaState : std::uint8_t {
  kAbsent,   // some rank is not attached
  kServing,  // serves `version` on every rank
  kBehind,   // serves an older version than the target, untouched
  kPaused,   // whole, not serving
  kLoading,  // inside its switch
  kTainted,  // its memory matches no version; never routed to
};
enum class RankState : std::uint8_t { kLoading, kServing, kPaused, kLoaded, kTainted };

struct ReplicaReport {
  std::string replica;
  std::uint32_t world_size = 1;
  std::uint32_t ranks_attached = 0;
  ReplicaState state = ReplicaState::kAbsent;
  bool ready = false;  // may be routed to
  Version version;     // active on every rank; 0.0 = none
  std::string reason;  // why it is not ready, one sentence
  // While it switches: bytes of the new version that its ranks have said to hold, else 0.
  std::uint64_t loaded_bytes = 0;
  std::uint64_t paused_ns = 0;  // in its last switch; 0 = it has not been paused
};

enum class SwitchOutcome : std::uint8_t { kCommitted, kBehind, kRolledBack, kTainted, kFailed };

// How the switch of one replica ended. Times in nanoseconds.
struct ReplicaOutcome {
  std::string replica;
  SwitchOutcome outcome = SwitchOutcome::kFailed;
  Version version;              // what the replica runs now
  std::string reason;           // empty when committed
  std::uint64_t wait_ns = 0;    // PAUSE sent to the last rank's PAUSED
  std::uint64_t paused_ns = 0;  // last rank's PAUSED to RESUME sent
  std::uint64_t load_ns = 0;    // LOAD sent to the last rank's LOADED
  std::uint64_t bytes = 0;      // loaded, summed over the ranks
};

// One thing that does not fit between the trainer's layout and an engine's.
enum class ProblemKind : std::uint8_t { kMissing, kExtra, kDtype, kShape, kRange, kMemory, kOther };
struct Problem {
  ProblemKind kind = ProblemKind::kOther;
  std::string tensor;
  std::string detail;   // one sentence: expected, found
  std::string nearest;  // nearest name on the other side; empty = none is near
};

// ---- coordinator and sidecar ----

// First message of a sidecar on every connection, again after each Welcome that asks for it, and
// until one comes.
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  std::string name;  // of the sidecar, unique in the fleet
  std::string host;  // host name, for people
  std::uint32_t pid = 0;
  std::string boot_id;       // kernel boot id: says only that a same-host hand-over is worth trying
  std::string data_address;  // tcp://host:port of its relay, empty when it has none
  Decision decision;         // newest persisted
  Version target;            // of that decision
  std::vector<Version> withdrawn;
  std::vector<Version> staged;  // complete and verified copies it holds
  std::vector<ReplicaReport> replicas;
  Digest layout;          // of the layout it knows; zero = none
  Digest target_content;  // of the target: a version never names two different byte strings
};

// Its envelope echoes the request of the Hello that it answers. It asks for a Hello when that was
// said under another fence than its own, which the sidecar stores first, and when it answers none
// (request 0).
struct Welcome {
  static constexpr MessageType kType = MessageType::kWelcome;
  std::string host_socket;   // pathname of the Unix socket that hands over descriptors
  std::string data_address;  // tcp://host:port that serves buckets; empty = none
};

// A version is offered. The layout travels when the receiver does not know its digest.
struct Announce {
  static constexpr MessageType kType = MessageType::kAnnounce;
  Version version;
  Digest layout_digest;
  Bytes layout;  // encoded Manifest, or empty
  Digest content_digest;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
};
struct Accept {
  static constexpr MessageType kType = MessageType::kAccept;
  Version version;
};
struct Refuse {
  static constexpr MessageType kType = MessageType::kRefuse;
  Version version;
  std::string reason;
  bool layout_unknown = false;  // send the Announce again with its layout
  std::vector<Problem> problems;
};

enum class TransportKind : std::uint8_t { kMemfd, kTcp };

struct Stage {
  static constexpr MessageType kType = MessageType::kStage;
  Version version;
  TransportKind transport = TransportKind::kMemfd;
  std::string source;  // memfd: the host socket; tcp: data address of the predecessor in the chain
  std::uint64_t first_bucket = 0;  // tcp: the first one wanted when attached again
};
struct Staged {
  static constexpr MessageType kType = MessageType::kStaged;
  Version version;
  Digest content_digest;  // computed by the sidecar over the bytes it holds
  std::uint64_t bytes = 0;
  std::uint64_t staging_ns = 0;
  std::string failure;  // not empty: staging failed, the rest is void
  // With a failure: only its source went away; a new Stage lets it go on where it stands.
  bool source_lost = false;
};

enum class DecisionKind : std::uint8_t { kSwitch, kRollback };
enum class PauseMode : std::uint8_t { kAbort, kWait, kKeep };

struct Decide {
  static constexpr MessageType kType = MessageType::kDecide;
  std::uint64_t number = 0;  // under the envelope's fence
  DecisionKind kind = DecisionKind::kSwitch;
  Version target;
  std::vector<Version> withdrawn;  // all known ones
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t pause_deadline_ms = 0;
  std::uint32_t load_deadline_ms = 0;
  Digest content_digest;  // of the target; another one under the same name is refused
};
// The decision is on the sidecar's disc.
struct Decided {
  static constexpr MessageType kType = MessageType::kDecided;
  std::uint64_t number = 0;
  bool refused = false;
  std::string reason;
};
// Every replica of the sidecar has finished its switch, well or not.
struct Switched {
  static constexpr MessageType kType = MessageType::kSwitched;
  std::uint64_t number = 0;
  Version target;
  std::vector<ReplicaOutcome> outcomes;
};

struct Abort {
  static constexpr MessageType kType = MessageType::kAbort;
  Version version;
  std::string reason;
};
struct Heartbeat {
  static constexpr MessageType kType = MessageType::kHeartbeat;
  std::uint64_t sequence = 0;
  std::uint64_t staged_bytes = 0;  // sidecar: progress of the version being staged
  Version target;
  std::vector<Version> staged;
  std::vector<ReplicaReport> replicas;  // sidecar: current state; coordinator: empty
};
struct Leave {
  static constexpr MessageType kType = MessageType::kLeave;
  std::string reason;
};
struct ErrorReply {
  static constexpr MessageType kType = MessageType::kError;
  std::uint8_t code = 0;  // ErrorCode
  std::string message;
};

// ---- commands ----

struct Push {
  static constexpr MessageType kType = MessageType::kPush;
  std::string directory;   // absolute; read by the coordinator
  std::uint64_t step = 0;  // 0 = next free
};
enum class ProgressPhase : std::uint8_t { kSnapshot, kAnnounce, kStage, kSwitch };
struct Progress {
  static constexpr MessageType kType = MessageType::kProgress;
  ProgressPhase phase = ProgressPhase::kSnapshot;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
};
struct PushReply {
  static constexpr MessageType kType = MessageType::kPushReply;
  bool ok = false;
  std::string reason;
  Version version;
  Digest content_digest;
  std::uint64_t bytes = 0;
  std::uint64_t snapshot_ns = 0;
  std::uint64_t staged_ns = 0;
  std::uint64_t switch_ns = 0;
  std::vector<Problem> problems;
  std::vector<ReplicaOutcome> outcomes;
};
struct Rollback {
  static constexpr MessageType kType = MessageType::kRollback;
  Version to;  // 0.0 = the previous one
};
struct RollbackReply {
  static constexpr MessageType kType = MessageType::kRollbackReply;
  bool ok = false;
  bool partial = false;  // decided, but the named replicas have not acknowledged
  std::string reason;
  Version from;
  Version to;
  std::vector<ReplicaOutcome> outcomes;
};
struct Verify {
  static constexpr MessageType kType = MessageType::kVerify;
};
struct TensorMismatch {
  std::string tensor;
  Digest expected;
  Digest found;
};
struct VerifyRank {
  std::string replica;
  std::uint32_t rank = 0;
  Version version;
  std::uint64_t tensors = 0;  // checked
  std::uint64_t bytes = 0;    // checked
  std::string failure;        // not empty: it could not be read
  std::vector<TensorMismatch> mismatches;
};
struct VerifyReply {
  static constexpr MessageType kType = MessageType::kVerifyReply;
  std::vector<VerifyRank> ranks;
};
// Would this layout be taken? Changes nothing.
struct Plan {
  static constexpr MessageType kType = MessageType::kPlan;
  Bytes layout;  // encoded Manifest
  std::uint64_t arena_bytes = 0;
};
// A GPU of a sidecar, and what the sidecar's buffers take of its memory.
struct GpuPlan {
  std::string name;           // "GPU 0 (NVIDIA H200)"
  std::string uuid;           // "GPU-..."
  std::uint32_t devices = 0;  // of the sidecar, on it
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // now, with what is held
  std::uint64_t held_bytes = 0;  // by buffers now
  std::uint64_t peak_bytes = 0;  // by buffers while an update runs
  // Beside buffers: tables of streams and communicators, and CUDA's context of the sidecar.
  std::uint64_t streams_bytes = 0;
  bool streams_measured = false;    // else an estimate
  std::uint64_t context_bytes = 0;  // at most
};
struct SidecarPlan {
  std::string name;
  std::string failure;             // not empty: it could not be asked, the rest is void
  std::uint32_t replicas = 0;      // with a rank attached
  std::uint32_t devices = 0;       // separate devices or GPUs; 0 = unified
  std::uint64_t buffer_bytes = 0;  // of each buffer of such a device
  std::uint32_t versions_held = 0;
  std::vector<Problem> problems;  // why it would refuse; empty = it would accept
  std::vector<GpuPlan> gpus;      // cuda
};
struct PlanReply {
  static constexpr MessageType kType = MessageType::kPlanReply;
  std::vector<SidecarPlan> sidecars;
};
struct Status {
  static constexpr MessageType kType = MessageType::kStatus;
};
struct SidecarReport {
  std::string name;
  std::string host;
  std::uint32_t pid = 0;
  bool connected = false;
  TransportKind transport = TransportKind::kMemfd;
  Version target;
  std::vector<Version> staged;
  std::vector<ReplicaReport> replicas;
  std::uint64_t staged_bytes = 0;  // here and verified, of the version that is arriving; else 0
};
// The update that runs. Its bytes are those of its phase: of the model while the snapshot is taken,
// of all sidecars' copies while it is staged, of all replicas while they switch.
struct UpdateProgress {
  Version version;  // 0.0 = none runs, and the rest is void
  ProgressPhase phase = ProgressPhase::kSnapshot;
  bool rollback = false;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // 0 = not known yet
  std::uint64_t elapsed_ns = 0;   // since it began
  std::uint64_t phase_ns = 0;     // since its phase began
  std::uint64_t bytes_per_s = 0;  // of this phase so far; 0 = nothing has moved
  bool remaining_known = false;   // false: nothing has been measured to tell it from
  std::uint64_t remaining_ns = 0;
  std::uint32_t waiting = 0;  // updates behind it
};
// How the update before ended.
struct UpdateOutcome {
  Version version;  // 0.0 = it had none; without a reason as well: none has ended here
  bool ok = false;
  bool cancelled = false;
  std::string reason;  // empty when ok
  std::uint64_t bytes = 0;
  std::uint64_t snapshot_ns = 0;
  std::uint64_t staged_ns = 0;
  std::uint64_t switch_ns = 0;
  std::uint64_t paused_ns = 0;  // of the replica that was paused longest
  std::uint64_t ended_ago_ns = 0;
};
// Of this coordinator process. Superseded updates are in none of them.
struct UpdateCounters {
  std::uint64_t committed = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
};
// Something that went wrong: a sidecar was lost, an update failed.
struct Incident {
  std::uint64_t ago_ns = 0;
  std::string text;  // one sentence
};
struct StatusReply {
  static constexpr MessageType kType = MessageType::kStatusReply;
  std::string role;  // "coordinator" or "sidecar"
  Fence fence;
  std::uint64_t decision = 0;
  Version target;
  bool can_roll_back = false;
  Version rollback_target;
  std::vector<Version> withdrawn;
  std::string activity;  // "idle", "staging 0.3", ...
  std::vector<SidecarReport> sidecars;
  UpdateProgress running;  // coordinators only, as what follows
  UpdateOutcome last;
  UpdateCounters updates;
  std::vector<Incident> incidents;  // the newest first
};
// Stop the update that runs, or the one of this version, while it has not been decided.
struct Cancel {
  static constexpr MessageType kType = MessageType::kCancel;
  Version version;  // 0.0 = the one that runs
};
struct CancelReply {
  static constexpr MessageType kType = MessageType::kCancelReply;
  bool ok = false;
  std::string reason;  // why not; empty when ok
  Version version;     // that was stopped; 0.0 when not ok, or when it had no name yet
  ProgressPhase phase = ProgressPhase::kSnapshot;  // that it was in
};

// ---- engine link (Unix socket; descriptors by SCM_RIGHTS in the order named) ----

// A range of one dimension of a tensor that a rank takes; a tensor without ranges is taken whole.
struct DimRange {
  std::uint32_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
  friend bool operator==(const DimRange&, const DimRange&) = default;
};
struct EngineTensor {
  std::string name;                  // as in the checkpoint
  std::uint8_t dtype = 0;            // weights DType
  std::vector<std::uint64_t> shape;  // full, not this rank's
  std::vector<DimRange> ranges;
};
enum class TakeMode : std::uint8_t {
  kPieces,  // copies pieces into its own memory
  kWhole,   // wants whole tensors, a layer at a time
  kAdopt,   // maps the staged version and uses it in place
};
// Sent once after connecting; the replica and rank are in the envelope.
struct EngineHello {
  static constexpr MessageType kType = MessageType::kEngineHello;
  std::uint32_t world_size = 1;
  bool leader = true;
  std::uint32_t device = 0;  // index of the sidecar's device it runs on
  std::uint32_t pid = 0;
  TakeMode take = TakeMode::kPieces;
  RankState state = RankState::kLoading;
  Version active;  // 0.0 = none
  std::uint64_t step = 0;
  std::vector<EngineTensor> tensors;
  std::string gpu;  // UUID of the GPU that holds its weights; empty: in host memory
};
enum class DeviceKind : std::uint8_t { kUnified, kSeparate, kCuda };
// One IPC buffer on a GPU, as device::MemoryHandle::opaque has it.
struct BufferHandle {
  Bytes opaque;
  std::uint64_t generation = 0;  // of the sidecar process that made it: that of its welcome
};
// Descriptors with it: separate devices: the two IPC buffers (memfd); unified and cuda: none.
struct EngineWelcome {
  static constexpr MessageType kType = MessageType::kEngineWelcome;
  std::uint64_t generation = 0;  // of the sidecar process
  DeviceKind device_kind = DeviceKind::kUnified;
  std::uint64_t buffer_bytes = 0;  // of each IPC buffer
  // cuda: the two IPC buffers, when they are kept between loads; else each Load brings them.
  std::vector<BufferHandle> buffers;
};
// A version is staged, or about to be loaded: map it and get ready, while serving goes on.
// Descriptors: unified: the arena.
struct Prepare {
  static constexpr MessageType kType = MessageType::kPrepare;
  Version version;
  Digest layout_digest;
  Bytes layout;  // encoded Manifest; empty when the last one sent to this engine is meant
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::vector<std::uint64_t>
      checksums;  // of each copy group of this rank's load plan, in its order: as LoadPlan::execute
                  // returns it; cuda: the folded PieceDigest of the group's bytes
};
struct Prepared {
  static constexpr MessageType kType = MessageType::kPrepared;
  Version version;
  std::string failure;  // not empty: it cannot take this version
};
// The version is no longer held by the sidecar: unmap it unless it is the one in use.
struct Release {
  static constexpr MessageType kType = MessageType::kRelease;
  Version version;
};
struct Pause {
  static constexpr MessageType kType = MessageType::kPause;
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t deadline_ms = 0;
};
struct Paused {
  static constexpr MessageType kType = MessageType::kPaused;
  std::uint64_t step = 0;
};
struct Load {
  static constexpr MessageType kType = MessageType::kLoad;
  Version version;
  std::uint32_t deadline_ms = 0;
  // How many threads a rank may copy with (unified devices), so that the ranks of a host that load
  // at the same time use each core once. 0 or 1: the link's own.
  std::uint32_t copy_threads = 1;
  // cuda, where buffers are not kept: the two IPC buffers of this load. The rank has unmapped them
  // when it sends Loaded.
  std::vector<BufferHandle> buffers;
};
// Separate devices and GPUs: a bucket lies in an IPC buffer.
struct BucketReady {
  static constexpr MessageType kType = MessageType::kBucketReady;
  std::uint64_t bucket = 0;
  std::uint32_t slot = 0;  // which IPC buffer
};
// Sent after the copy out of the bucket is complete: the buffer may be overwritten.
struct BucketDone {
  static constexpr MessageType kType = MessageType::kBucketDone;
  std::uint64_t bucket = 0;
  std::string failure;  // not empty: a checksum differed, or the callback failed
};
struct Loaded {
  static constexpr MessageType kType = MessageType::kLoaded;
  Version version;
  std::uint64_t bytes = 0;
  std::uint64_t copy_ns = 0;
  std::string failure;
};
struct Commit {
  static constexpr MessageType kType = MessageType::kCommit;
  Version version;
};
struct Committed {
  static constexpr MessageType kType = MessageType::kCommitted;
  Version version;
  std::string failure;
};
struct Resume {
  static constexpr MessageType kType = MessageType::kResume;
};
struct Resumed {
  static constexpr MessageType kType = MessageType::kResumed;
};
struct ReadDigests {
  static constexpr MessageType kType = MessageType::kReadDigests;
};
struct HeldTensor {
  std::string name;
  // XXH3-128 over this rank's bytes of the tensor, row-major; cuda: their piece digest.
  Digest digest;
  std::uint64_t bytes = 0;
};
struct Digests {
  static constexpr MessageType kType = MessageType::kDigests;
  Version version;
  std::vector<HeldTensor> tensors;
  std::string failure;
};

// ---- rank link (Unix socket between rank 0 of a trainer and its other ranks on one host) ----

// First message of a rank on every connection; answered only when it is refused (Error).
struct RankHello {
  static constexpr MessageType kType = MessageType::kRankHello;
  std::uint32_t rank = 1;
  std::uint32_t world_size = 2;
  std::uint32_t pid = 0;
  std::uint32_t incarnation = 0;  // how often this rank's process was replaced: the highest rules
};
// What the rank has of the model; rules until another one comes. `ranges` of a tensor: what of it
// this rank has, none = all of it.
struct RankShards {
  static constexpr MessageType kType = MessageType::kRankShards;
  std::vector<EngineTensor> tensors;
};
// The rank's shards of a step are copied: its weights may change. Descriptor with it: the arena
// that holds them (memfd), sealed; none with a failure.
struct Snapshotted {
  static constexpr MessageType kType = MessageType::kSnapshotted;
  std::uint64_t step = 0;
  Digest content_digest;  // of the shards, each a tensor of its own
  std::string failure;    // not empty: the rank could not take its snapshot
};
enum class PublishState : std::uint8_t {
  kPending,      // the weights are still being read
  kSnapshotted,  // the caller may overwrite its weights
  kStaged,       // on the inference side, verified
  kCommitted,    // served by every replica that counts
  kSuperseded,   // a newer version took its place before it was decided
  kFailed,
};
// How far the version of a step has come.
struct PublishStatus {
  static constexpr MessageType kType = MessageType::kPublishStatus;
  std::uint64_t step = 0;
  PublishState state = PublishState::kPending;
  Version version;  // 0.0 = it has none
  Digest content_digest;
  std::uint64_t bytes = 0;        // of the whole model
  std::uint64_t snapshot_ns = 0;  // of rank 0, the gathering included
  std::uint64_t staged_ns = 0;
  std::uint64_t paused_ns = 0;  // of the replica that was paused longest
  std::uint32_t replicas = 0;   // that have committed
  std::uint8_t code = 0;        // ErrorCode; failed only
  std::string reason;           // failed and superseded only
};

// ---- traces ----

// What have you traced? Asked of a coordinator, it asks its sidecars, and says how far their clocks
// are from its own; asked of a sidecar, it answers for itself.
struct TraceQuestion {
  static constexpr MessageType kType = MessageType::kTraceQuestion;
  std::uint64_t age_ns = 0;     // spans that ended no longer ago than this; 0 = all that are kept
  std::uint64_t max_bytes = 0;  // of the encoded spans of all processes; 0: only the clocks
  std::int64_t asked_ns = 0;    // the asker's clock, for the answer to echo
};
struct TraceProcess {
  std::string name;  // "sidecar host0"
  std::string host;  // host name, for people
  std::uint32_t pid = 0;
  std::string boot_id;
  std::string failure;           // not empty: it could not be asked, the rest is void
  std::int64_t asked_ns = 0;     // of the question
  std::int64_t received_ns = 0;  // its own clock: when the question came,
  std::int64_t answered_ns = 0;  // and when the answer was sent
  std::uint8_t clock = 0;        // trace ClockKind, from here on as the coordinator found it
  std::int64_t offset_ns = 0;    // its clock minus the coordinator's
  std::uint64_t uncertainty_ns = 0;
  std::uint64_t dropped = 0;  // spans that it had and that are not here
  Bytes spans;                // as trace::encode_spans() has them, on its own clock
};
struct TraceAnswer {
  static constexpr MessageType kType = MessageType::kTraceAnswer;
  std::vector<TraceProcess> processes;
};

using Message =
    std::variant<Hello, Welcome, Announce, Accept, Refuse, Stage, Staged, Decide, Decided, Switched,
                 Abort, Heartbeat, Leave, ErrorReply, Push, PushReply, Progress, Rollback,
                 RollbackReply, Verify, VerifyReply, Status, StatusReply, EngineHello,
                 EngineWelcome, Prepare, Prepared, Release, Pause, Paused, Load, BucketReady,
                 BucketDone, Loaded, Commit, Committed, Resume, Resumed, ReadDigests, Digests,
                 RankHello, RankShards, Snapshotted, PublishStatus, Plan, PlanReply, Cancel,
                 CancelReply, TraceQuestion, TraceAnswer>;

}  // namespace wsync::control
