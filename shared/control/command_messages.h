// Between commands and the coordinator, or a sidecar (messages.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/control/envelope.h"
#include "shared/control/sidecar_messages.h"

namespace wsync::control {

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

}  // namespace wsync::control
