// Messages between commands and the coordinator or a sidecar (messages.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/control/envelope.h"
#include "shared/control/sidecar_messages.h"

namespace wsync::control {

struct Push {
  static constexpr MessageType kType = MessageType::kPush;
  std::string directory;   // absolute path, read by the trainer
  std::uint64_t step = 0;  // 0 = next free step
  // Of the process that asks; the directory is one of its host. Empty: one of the trainer's host.
  std::string host;     // host name, for people
  std::string boot_id;  // as in Hello
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
  std::string reason;  // why not; if `ok`: empty, or what is worth knowing
  Version version;
  Digest content_digest;
  std::uint64_t bytes = 0;
  std::uint64_t snapshot_ns = 0;
  std::uint64_t staged_ns = 0;
  std::uint64_t switch_ns = 0;  // since the decision; 0 = the version was not decided
  std::vector<Problem> problems;
  std::vector<ReplicaOutcome> outcomes;
  // Not empty: only the replica of this name was to switch. The others wait for a Promote.
  std::string canary;
};
// Why a publish with `ok` false is one: kPartial if its version was decided, so that replicas may
// serve it and the others go on trying; otherwise kRefused, and no replica has changed.
[[nodiscard]] constexpr ErrorCode failure_code(const PushReply& reply) noexcept {
  return reply.switch_ns != 0 ? ErrorCode::kPartial : ErrorCode::kRefused;
}
struct Rollback {
  static constexpr MessageType kType = MessageType::kRollback;
  Version to;  // 0.0 = the previous version
};
struct RollbackReply {
  static constexpr MessageType kType = MessageType::kRollbackReply;
  bool ok = false;
  bool partial = false;  // decided, but the named replicas have not acknowledged it
  std::string reason;
  Version from;
  Version to;
  std::vector<ReplicaOutcome> outcomes;
};
// Ends the wait for the canary: every other replica switches to the target as well.
struct Promote {
  static constexpr MessageType kType = MessageType::kPromote;
  bool force = false;  // even if the canary does not serve the target
};
struct PromoteReply {
  static constexpr MessageType kType = MessageType::kPromoteReply;
  bool ok = false;
  bool partial = false;  // decided, but the named replicas have not switched
  std::string reason;
  Version version;  // 0.0 = there is none to promote
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
  std::string replica;  // empty: of a sidecar that did not answer, and had none
  std::uint32_t rank = 0;
  Version version;
  std::uint64_t tensors = 0;  // checked
  std::uint64_t bytes = 0;    // checked
  std::string failure;        // not empty: the rank could not be read
  std::vector<TensorMismatch> mismatches;
  // With a failure: nothing has failed, but the engine cannot return bytes that it holds, so they
  // are not verified.
  bool is_unreadable = false;
  bool is_controller = false;  // it holds no weights, because it is the controller of its replica
  std::string follows;         // with mismatches: what the sidecar does about them
};
struct VerifyReply {
  static constexpr MessageType kType = MessageType::kVerifyReply;
  std::vector<VerifyRank> ranks;
};
// Asks whether the sidecars would accept this layout. Changes nothing.
struct Plan {
  static constexpr MessageType kType = MessageType::kPlan;
  Bytes layout;  // encoded Manifest
  std::uint64_t arena_bytes = 0;
};
// One GPU of a sidecar, and the memory that the sidecar's buffers use on it.
struct GpuPlan {
  std::string name;           // "GPU 0 (NVIDIA H200)"
  std::string uuid;           // "GPU-..."
  std::uint32_t devices = 0;  // devices of the sidecar on this GPU
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // currently free, with the held buffers allocated
  std::uint64_t held_bytes = 0;  // currently allocated for buffers
  std::uint64_t peak_bytes = 0;  // for buffers during an update
  // Memory besides the buffers: tables of streams and communicators, and the sidecar's CUDA
  // context.
  std::uint64_t streams_bytes = 0;
  bool streams_measured = false;    // false: an estimate
  std::uint64_t context_bytes = 0;  // upper bound
};
struct SidecarPlan {
  std::string name;
  std::string failure;         // not empty: the sidecar could not be asked, and the rest is void
  std::uint32_t replicas = 0;  // with at least one attached rank
  std::uint32_t devices = 0;   // separate devices or GPUs; 0 = unified
  std::uint64_t buffer_bytes = 0;  // of each buffer of such a device
  std::uint32_t versions_held = 0;
  std::uint32_t own_arenas = 0;    // arenas of the sidecar itself, for versions that come as copies
  std::uint64_t engine_bytes = 0;  // weights that its engines copy into host memory
  std::uint64_t patch_bytes = 0;   // of patches, at most; they exist where little changes
  std::vector<Problem> problems;   // reasons to refuse the layout; empty = accepted
  std::vector<GpuPlan> gpus;       // cuda
};
struct PlanReply {
  static constexpr MessageType kType = MessageType::kPlanReply;
  std::uint32_t arenas = 0;  // of the trainer, at most; 0: a sidecar answers for itself
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
  std::string transport;  // kind by which versions come to it; empty: none is in common
  Version target;
  std::vector<Version> staged;
  std::vector<ReplicaReport> replicas;
  std::uint64_t staged_bytes = 0;  // of the incoming version, received and verified; else 0
  CopyReport last_copy;
};
// The update that is running. Its byte counts depend on its phase: snapshot: bytes of the model;
// stage: of the copies of all sidecars; switch: of all replicas.
struct UpdateProgress {
  Version version;  // 0.0 = no update is running, and the rest is void
  ProgressPhase phase = ProgressPhase::kSnapshot;
  bool rollback = false;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // 0 = not yet known
  std::uint64_t elapsed_ns = 0;   // since the update started
  std::uint64_t phase_ns = 0;     // since the phase started
  std::uint64_t bytes_per_s = 0;  // average of this phase; 0 = no bytes yet
  bool remaining_known = false;   // false: no measurement to estimate it from
  std::uint64_t remaining_ns = 0;
  std::uint32_t waiting = 0;  // updates in the queue
};
// The result of the previous update.
struct UpdateOutcome {
  Version version;  // 0.0 = it got no version, or (without a reason) no update has ended in this
                    // process
  bool ok = false;
  bool cancelled = false;
  std::string reason;  // empty when ok
  std::uint64_t bytes = 0;
  std::uint64_t snapshot_ns = 0;
  std::uint64_t staged_ns = 0;
  std::uint64_t switch_ns = 0;  // since the decision; 0 = it was not decided
  std::uint64_t paused_ns = 0;  // longest pause of any replica
  std::uint64_t ended_ago_ns = 0;
};
// Whether it was decided and did not reach every replica in time.
[[nodiscard]] constexpr bool is_partial(const UpdateOutcome& last) noexcept {
  return !last.ok && last.switch_ns != 0;
}
// Counters of this coordinator process. Superseded updates are not counted.
struct UpdateCounters {
  std::uint64_t committed = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
};
// An event that needs attention, such as a lost sidecar or a failed update.
struct Incident {
  std::uint64_t ago_ns = 0;
  std::string text;  // one sentence
};
inline constexpr std::string_view kNoTrainer = "no trainer is connected";
struct StatusReply {
  static constexpr MessageType kType = MessageType::kStatusReply;
  std::string role;  // "coordinator" or "sidecar"
  Fence fence;
  std::uint64_t decision = 0;
  Version target;
  bool can_roll_back = false;
  Version rollback_target;
  std::vector<Version> withdrawn;
  // "idle", "staging 0.3", ...; ends with kNoTrainer if no trainer is connected to a coordinator
  // that is a process of its own.
  std::string activity;
  std::vector<SidecarReport> sidecars;
  UpdateProgress running;  // this and the following: only of coordinators
  UpdateOutcome last;
  UpdateCounters updates;
  std::vector<Incident> incidents;  // newest first
  // How weights travel to other hosts: "tls" or "trusted_network". Empty: they stay on this host,
  // or the reply is of a sidecar.
  std::string data_security;
};
// Stops the running update, or the update of this version, unless it is already decided.
struct Cancel {
  static constexpr MessageType kType = MessageType::kCancel;
  Version version;  // 0.0 = the running one
};
struct CancelReply {
  static constexpr MessageType kType = MessageType::kCancelReply;
  bool ok = false;
  std::string reason;  // reason of the refusal; empty when ok
  Version version;     // the stopped version; 0.0 if not ok or if it had no version yet
  ProgressPhase phase = ProgressPhase::kSnapshot;  // its phase when it was stopped
};
// Forgets a sidecar that is gone, or a replica of a connected sidecar that has no rank attached.
struct Forget {
  static constexpr MessageType kType = MessageType::kForget;
  std::string sidecar;
  std::string replica;  // empty: the sidecar with its replicas
  // Also a sidecar that has not acknowledged that versions were withdrawn.
  bool force = false;
};
struct ForgetReply {
  static constexpr MessageType kType = MessageType::kForgetReply;
  bool ok = false;
  std::string reason;  // reason of the refusal; empty when ok
};

}  // namespace wsync::control
