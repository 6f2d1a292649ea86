// Field lists (fields.h) of commands and their replies.
#pragma once

#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/control/capability.h"
#include "shared/control/command_messages.h"
#include "shared/control/envelope_fields.h"

namespace wsync::control {

template <class V, class M>
  requires Is<M, Push>
void fields(V& v, M& m) {
  v.label("directory", m.directory, limits::kPathBytes);
  v.number("step", m.step);
  if (v.has(Capability::kPushOrigin)) {
    v.label("host", m.host, limits::kPeerNameBytes);
    v.label("boot_id", m.boot_id, limits::kPeerNameBytes);
  }
}

template <class V, class M>
  requires Is<M, Progress>
void fields(V& v, M& m) {
  v.choice("phase", m.phase, ProgressPhase::kSwitch);
  v.number("done_bytes", m.done_bytes);
  v.number("total_bytes", m.total_bytes);
}

template <class V, class M>
  requires Is<M, PushReply>
void fields(V& v, M& m) {
  v.flag("ok", m.ok);
  v.sentence("reason", m.reason);
  v.version("version", m.version);
  v.digest("content_digest", m.content_digest);
  v.number("bytes", m.bytes);
  v.number("snapshot_ns", m.snapshot_ns);
  v.number("staged_ns", m.staged_ns);
  v.number("switch_ns", m.switch_ns);
  v.list("problems", m.problems, limits::kProblemCount);
  v.list("outcomes", m.outcomes, limits::kReplicaCount);
  v.label("canary", m.canary, limits::kReplicaNameBytes);
}

template <class V, class M>
  requires Is<M, Promote>
void fields(V& v, M& m) {
  v.flag("force", m.force);
}

template <class V, class M>
  requires Is<M, PromoteReply>
void fields(V& v, M& m) {
  v.flag("ok", m.ok);
  v.flag("partial", m.partial);
  v.sentence("reason", m.reason);
  v.version("version", m.version);
  v.list("outcomes", m.outcomes, limits::kReplicaCount);
}

template <class V, class M>
  requires Is<M, Rollback>
void fields(V& v, M& m) {
  v.version("to", m.to);
}

template <class V, class M>
  requires Is<M, RollbackReply>
void fields(V& v, M& m) {
  v.flag("ok", m.ok);
  v.flag("partial", m.partial);
  v.sentence("reason", m.reason);
  v.version("from", m.from);
  v.version("to", m.to);
  v.list("outcomes", m.outcomes, limits::kReplicaCount);
}

template <class V, class M>
  requires Is<M, Verify>
void fields(V&, M&) {}

template <class V, class M>
  requires Is<M, TensorMismatch>
void fields(V& v, M& m) {
  v.label("tensor", m.tensor, limits::kTensorNameBytes);
  v.digest("expected", m.expected);
  v.digest("found", m.found);
}

template <class V, class M>
  requires Is<M, VerifyRank>
void fields(V& v, M& m) {
  v.label("replica", m.replica, limits::kReplicaNameBytes);
  v.bounded("rank", m.rank, limits::kReplicaRankCount - 1);
  v.version("version", m.version);
  v.number("tensors", m.tensors);
  v.number("bytes", m.bytes);
  v.sentence("failure", m.failure);
  v.list("mismatches", m.mismatches, limits::kTensorCount);
  v.flag("is_unreadable", m.is_unreadable);
  v.flag("is_controller", m.is_controller);
  v.sentence("follows", m.follows);
}

template <class V, class M>
  requires Is<M, VerifyReply>
void fields(V& v, M& m) {
  v.list("ranks", m.ranks, limits::kFleetRankCount);
}

template <class V, class M>
  requires Is<M, Plan>
void fields(V& v, M& m) {
  v.blob("layout", m.layout);
  v.number("arena_bytes", m.arena_bytes);
}

template <class V, class M>
  requires Is<M, GpuPlan>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kPeerNameBytes);
  v.label("uuid", m.uuid, limits::kGpuUuidBytes);
  v.number("devices", m.devices);
  v.number("total_bytes", m.total_bytes);
  v.number("free_bytes", m.free_bytes);
  v.number("held_bytes", m.held_bytes);
  v.number("peak_bytes", m.peak_bytes);
  v.number("streams_bytes", m.streams_bytes);
  v.flag("streams_measured", m.streams_measured);
  v.number("context_bytes", m.context_bytes);
}

template <class V, class M>
  requires Is<M, SidecarPlan>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kPeerNameBytes);
  v.sentence("failure", m.failure);
  v.number("replicas", m.replicas);
  v.number("devices", m.devices);
  v.number("buffer_bytes", m.buffer_bytes);
  v.number("versions_held", m.versions_held);
  v.number("own_arenas", m.own_arenas);
  v.number("engine_bytes", m.engine_bytes);
  v.number("patch_bytes", m.patch_bytes);
  v.list("problems", m.problems, limits::kProblemCount);
  v.list("gpus", m.gpus, limits::kDeviceCount);
}

template <class V, class M>
  requires Is<M, PlanReply>
void fields(V& v, M& m) {
  v.number("arenas", m.arenas);
  v.list("sidecars", m.sidecars, limits::kSidecarCount);
}

template <class V, class M>
  requires Is<M, Status>
void fields(V&, M&) {}

template <class V, class M>
  requires Is<M, SidecarReport>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kPeerNameBytes);
  v.label("host", m.host, limits::kPeerNameBytes);
  v.number("pid", m.pid);
  v.flag("connected", m.connected);
  v.label("transport", m.transport, limits::kTransportKindBytes);
  v.version("target", m.target);
  v.list("staged", m.staged, limits::kStagedCount);
  v.list("replicas", m.replicas, limits::kReplicaCount);
  v.number("staged_bytes", m.staged_bytes);
  v.part("last_copy", m.last_copy);
}

template <class V, class M>
  requires Is<M, UpdateProgress>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.choice("phase", m.phase, ProgressPhase::kSwitch);
  v.flag("rollback", m.rollback);
  v.number("done_bytes", m.done_bytes);
  v.number("total_bytes", m.total_bytes);
  v.number("elapsed_ns", m.elapsed_ns);
  v.number("phase_ns", m.phase_ns);
  v.number("bytes_per_s", m.bytes_per_s);
  v.flag("remaining_known", m.remaining_known);
  v.number("remaining_ns", m.remaining_ns);
  v.number("waiting", m.waiting);
}

template <class V, class M>
  requires Is<M, UpdateOutcome>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.flag("ok", m.ok);
  v.flag("cancelled", m.cancelled);
  v.sentence("reason", m.reason);
  v.number("bytes", m.bytes);
  v.number("snapshot_ns", m.snapshot_ns);
  v.number("staged_ns", m.staged_ns);
  v.number("switch_ns", m.switch_ns);
  v.number("paused_ns", m.paused_ns);
  v.number("ended_ago_ns", m.ended_ago_ns);
}

template <class V, class M>
  requires Is<M, UpdateCounters>
void fields(V& v, M& m) {
  v.number("committed", m.committed);
  v.number("failed", m.failed);
  v.number("cancelled", m.cancelled);
}

template <class V, class M>
  requires Is<M, Incident>
void fields(V& v, M& m) {
  v.number("ago_ns", m.ago_ns);
  v.sentence("text", m.text);
}

template <class V, class M>
  requires Is<M, StatusReply>
void fields(V& v, M& m) {
  v.label("role", m.role, limits::kPeerNameBytes);
  v.part("fence", m.fence);
  v.number("decision", m.decision);
  v.version("target", m.target);
  v.flag("can_roll_back", m.can_roll_back);
  v.version("rollback_target", m.rollback_target);
  v.list("withdrawn", m.withdrawn, limits::kWithdrawnCount);
  v.sentence("activity", m.activity);
  v.list("sidecars", m.sidecars, limits::kSidecarCount);
  v.part("running", m.running);
  v.part("last", m.last);
  v.part("updates", m.updates);
  v.list("incidents", m.incidents, limits::kIncidentCount);
  v.label("data_security", m.data_security, limits::kPeerNameBytes);
}

template <class V, class M>
  requires Is<M, Cancel>
void fields(V& v, M& m) {
  v.version("version", m.version);
}

template <class V, class M>
  requires Is<M, CancelReply>
void fields(V& v, M& m) {
  v.flag("ok", m.ok);
  v.sentence("reason", m.reason);
  v.version("version", m.version);
  v.choice("phase", m.phase, ProgressPhase::kSwitch);
}

template <class V, class M>
  requires Is<M, Forget>
void fields(V& v, M& m) {
  v.label("sidecar", m.sidecar, limits::kPeerNameBytes);
  v.label("replica", m.replica, limits::kReplicaNameBytes);
  v.flag("force", m.force);
}

template <class V, class M>
  requires Is<M, ForgetReply>
void fields(V& v, M& m) {
  v.flag("ok", m.ok);
  v.sentence("reason", m.reason);
}

}  // namespace wsync::control
