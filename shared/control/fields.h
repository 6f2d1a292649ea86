// The wire layout of every message: one list of its fields, in order, used by the encoder, the
// decoder and the tests, so that they cannot disagree. A new field goes to the end of its list and
// raises kProtocolVersion.
//
// What a visitor is called with (the type on the wire in brackets):
//   number(name, value)             any integer [its own width]
//   bounded(name, value, greatest)  an integer that may not exceed `greatest`
//   flag(name, value)               bool [u8: 0 or 1]
//   choice(name, value, last)       an enum whose greatest value is `last` [underlying type]
//   label(name, value, max_bytes)   a name or path [u32 length, bytes]; too long is an error
//   sentence(name, value)           text for people [same]; the encoder shortens it to the limit
//   blob(name, value)               nested encoded data [u32 length, bytes]
//   digest(name, value)             [low u64, high u64]
//   version(name, value)            [epoch u32, step u64]
//   part(name, value)               a struct that has a list here itself
//   list(name, value, max_count)    [u32 count, elements]; elements are u64, versions or structs
//   with a list here
#pragma once

#include <concepts>
#include <type_traits>

#include "shared/base/limits.h"
#include "shared/control/messages.h"

namespace wsync::control {

// M is T, const or not.
template <class M, class T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

template <class V, class M>
  requires Is<M, Fence>
void fields(V& v, M& m) {
  v.number("epoch", m.epoch);
  v.number("run_id[0]", m.run_id[0]);
  v.number("run_id[1]", m.run_id[1]);
}

template <class V, class M>
  requires Is<M, Decision>
void fields(V& v, M& m) {
  v.part("fence", m.fence);
  v.number("number", m.number);
}

// ---- shared parts ----

template <class V, class M>
  requires Is<M, ReplicaReport>
void fields(V& v, M& m) {
  v.label("replica", m.replica, limits::kReplicaNameBytes);
  v.bounded("world_size", m.world_size, limits::kReplicaRankCount);
  v.bounded("ranks_attached", m.ranks_attached, limits::kReplicaRankCount);
  v.choice("state", m.state, ReplicaState::kTainted);
  v.flag("ready", m.ready);
  v.version("version", m.version);
  v.sentence("reason", m.reason);
  v.number("loaded_bytes", m.loaded_bytes);
  v.number("paused_ns", m.paused_ns);
}

template <class V, class M>
  requires Is<M, ReplicaOutcome>
void fields(V& v, M& m) {
  v.label("replica", m.replica, limits::kReplicaNameBytes);
  v.choice("outcome", m.outcome, SwitchOutcome::kFailed);
  v.version("version", m.version);
  v.sentence("reason", m.reason);
  v.number("wait_ns", m.wait_ns);
  v.number("paused_ns", m.paused_ns);
  v.number("load_ns", m.load_ns);
  v.number("bytes", m.bytes);
}

template <class V, class M>
  requires Is<M, Problem>
void fields(V& v, M& m) {
  v.choice("kind", m.kind, ProblemKind::kOther);
  v.label("tensor", m.tensor, limits::kTensorNameBytes);
  v.sentence("detail", m.detail);
  v.label("nearest", m.nearest, limits::kTensorNameBytes);
}

// ---- coordinator and sidecar ----

template <class V, class M>
  requires Is<M, Hello>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kPeerNameBytes);
  v.label("host", m.host, limits::kPeerNameBytes);
  v.number("pid", m.pid);
  v.label("boot_id", m.boot_id, limits::kPeerNameBytes);
  v.label("data_address", m.data_address, limits::kAddressBytes);
  v.part("decision", m.decision);
  v.version("target", m.target);
  v.list("withdrawn", m.withdrawn, limits::kWithdrawnCount);
  v.list("staged", m.staged, limits::kStagedCount);
  v.list("replicas", m.replicas, limits::kReplicaCount);
  v.digest("layout", m.layout);
  v.digest("target_content", m.target_content);
}

template <class V, class M>
  requires Is<M, Welcome>
void fields(V& v, M& m) {
  v.label("host_socket", m.host_socket, limits::kAddressBytes);
  v.label("data_address", m.data_address, limits::kAddressBytes);
}

template <class V, class M>
  requires Is<M, Announce>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.digest("layout_digest", m.layout_digest);
  v.blob("layout", m.layout);
  v.digest("content_digest", m.content_digest);
  v.number("bucket_bytes", m.bucket_bytes);
  v.number("arena_bytes", m.arena_bytes);
}

template <class V, class M>
  requires Is<M, Accept>
void fields(V& v, M& m) {
  v.version("version", m.version);
}

template <class V, class M>
  requires Is<M, Refuse>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.sentence("reason", m.reason);
  v.flag("layout_unknown", m.layout_unknown);
  v.list("problems", m.problems, limits::kProblemCount);
}

template <class V, class M>
  requires Is<M, Stage>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.choice("transport", m.transport, TransportKind::kTcp);
  v.label("source", m.source, limits::kAddressBytes);
  v.number("first_bucket", m.first_bucket);
}

template <class V, class M>
  requires Is<M, Staged>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.digest("content_digest", m.content_digest);
  v.number("bytes", m.bytes);
  v.number("staging_ns", m.staging_ns);
  v.sentence("failure", m.failure);
  v.flag("source_lost", m.source_lost);
}

template <class V, class M>
  requires Is<M, Decide>
void fields(V& v, M& m) {
  v.number("number", m.number);
  v.choice("kind", m.kind, DecisionKind::kRollback);
  v.version("target", m.target);
  v.list("withdrawn", m.withdrawn, limits::kWithdrawnCount);
  v.choice("mode", m.mode, PauseMode::kKeep);
  v.number("pause_deadline_ms", m.pause_deadline_ms);
  v.number("load_deadline_ms", m.load_deadline_ms);
  v.digest("content_digest", m.content_digest);
}

template <class V, class M>
  requires Is<M, Decided>
void fields(V& v, M& m) {
  v.number("number", m.number);
  v.flag("refused", m.refused);
  v.sentence("reason", m.reason);
}

template <class V, class M>
  requires Is<M, Switched>
void fields(V& v, M& m) {
  v.number("number", m.number);
  v.version("target", m.target);
  v.list("outcomes", m.outcomes, limits::kReplicaCount);
}

template <class V, class M>
  requires Is<M, Abort>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.sentence("reason", m.reason);
}

template <class V, class M>
  requires Is<M, Heartbeat>
void fields(V& v, M& m) {
  v.number("sequence", m.sequence);
  v.number("staged_bytes", m.staged_bytes);
  v.version("target", m.target);
  v.list("staged", m.staged, limits::kStagedCount);
  v.list("replicas", m.replicas, limits::kReplicaCount);
}

template <class V, class M>
  requires Is<M, Leave>
void fields(V& v, M& m) {
  v.sentence("reason", m.reason);
}

template <class V, class M>
  requires Is<M, ErrorReply>
void fields(V& v, M& m) {
  v.bounded("code", m.code, static_cast<std::uint8_t>(ErrorCode::kInternal));
  v.sentence("message", m.message);
}

// ---- commands ----

template <class V, class M>
  requires Is<M, Push>
void fields(V& v, M& m) {
  v.label("directory", m.directory, limits::kPathBytes);
  v.number("step", m.step);
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
  v.list("problems", m.problems, limits::kProblemCount);
  v.list("gpus", m.gpus, limits::kDeviceCount);
}

template <class V, class M>
  requires Is<M, PlanReply>
void fields(V& v, M& m) {
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
  v.choice("transport", m.transport, TransportKind::kTcp);
  v.version("target", m.target);
  v.list("staged", m.staged, limits::kStagedCount);
  v.list("replicas", m.replicas, limits::kReplicaCount);
  v.number("staged_bytes", m.staged_bytes);
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

// ---- engine link ----

template <class V, class M>
  requires Is<M, DimRange>
void fields(V& v, M& m) {
  v.number("dim", m.dim);
  v.number("begin", m.begin);
  v.number("length", m.length);
}

template <class V, class M>
  requires Is<M, EngineTensor>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kTensorNameBytes);
  v.number("dtype", m.dtype);
  v.list("shape", m.shape, limits::kTensorRank);
  v.list("ranges", m.ranges, limits::kRangesPerTensor);
}

template <class V, class M>
  requires Is<M, EngineHello>
void fields(V& v, M& m) {
  v.bounded("world_size", m.world_size, limits::kReplicaRankCount);
  v.flag("leader", m.leader);
  v.bounded("device", m.device, limits::kDeviceCount - 1);
  v.number("pid", m.pid);
  v.choice("take", m.take, TakeMode::kAdopt);
  v.choice("state", m.state, RankState::kTainted);
  v.version("active", m.active);
  v.number("step", m.step);
  v.list("tensors", m.tensors, limits::kTensorCount);
  v.label("gpu", m.gpu, limits::kGpuUuidBytes);
}

template <class V, class M>
  requires Is<M, BufferHandle>
void fields(V& v, M& m) {
  v.blob("opaque", m.opaque);
  v.number("generation", m.generation);
}

template <class V, class M>
  requires Is<M, EngineWelcome>
void fields(V& v, M& m) {
  v.number("generation", m.generation);
  v.choice("device_kind", m.device_kind, DeviceKind::kCuda);
  v.number("buffer_bytes", m.buffer_bytes);
  v.list("buffers", m.buffers, limits::kIpcBufferCount);
}

template <class V, class M>
  requires Is<M, Prepare>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.digest("layout_digest", m.layout_digest);
  v.blob("layout", m.layout);
  v.number("bucket_bytes", m.bucket_bytes);
  v.number("arena_bytes", m.arena_bytes);
  v.list("checksums", m.checksums, limits::kCopyGroupCount);
}

template <class V, class M>
  requires Is<M, Prepared>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.sentence("failure", m.failure);
}

template <class V, class M>
  requires Is<M, Release>
void fields(V& v, M& m) {
  v.version("version", m.version);
}

template <class V, class M>
  requires Is<M, Pause>
void fields(V& v, M& m) {
  v.choice("mode", m.mode, PauseMode::kKeep);
  v.number("deadline_ms", m.deadline_ms);
}

template <class V, class M>
  requires Is<M, Paused>
void fields(V& v, M& m) {
  v.number("step", m.step);
}

template <class V, class M>
  requires Is<M, Load>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.number("deadline_ms", m.deadline_ms);
  v.bounded("copy_threads", m.copy_threads, limits::kCopyThreadCount);
  v.list("buffers", m.buffers, limits::kIpcBufferCount);
}

template <class V, class M>
  requires Is<M, BucketReady>
void fields(V& v, M& m) {
  v.number("bucket", m.bucket);
  v.number("slot", m.slot);
}

template <class V, class M>
  requires Is<M, BucketDone>
void fields(V& v, M& m) {
  v.number("bucket", m.bucket);
  v.sentence("failure", m.failure);
}

template <class V, class M>
  requires Is<M, Loaded>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.number("bytes", m.bytes);
  v.number("copy_ns", m.copy_ns);
  v.sentence("failure", m.failure);
}

template <class V, class M>
  requires Is<M, Commit>
void fields(V& v, M& m) {
  v.version("version", m.version);
}

template <class V, class M>
  requires Is<M, Committed>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.sentence("failure", m.failure);
}

template <class V, class M>
  requires Is<M, Resume>
void fields(V&, M&) {}

template <class V, class M>
  requires Is<M, Resumed>
void fields(V&, M&) {}

template <class V, class M>
  requires Is<M, ReadDigests>
void fields(V&, M&) {}

template <class V, class M>
  requires Is<M, HeldTensor>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kTensorNameBytes);
  v.digest("digest", m.digest);
  v.number("bytes", m.bytes);
}

template <class V, class M>
  requires Is<M, Digests>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.list("tensors", m.tensors, limits::kTensorCount);
  v.sentence("failure", m.failure);
}

// ---- rank link ----

template <class V, class M>
  requires Is<M, RankHello>
void fields(V& v, M& m) {
  v.bounded("rank", m.rank, limits::kTrainerRankCount - 1);
  v.bounded("world_size", m.world_size, limits::kTrainerRankCount);
  v.number("pid", m.pid);
  v.number("incarnation", m.incarnation);
}

template <class V, class M>
  requires Is<M, RankShards>
void fields(V& v, M& m) {
  v.list("tensors", m.tensors, limits::kTensorCount);
}

template <class V, class M>
  requires Is<M, Snapshotted>
void fields(V& v, M& m) {
  v.number("step", m.step);
  v.digest("content_digest", m.content_digest);
  v.sentence("failure", m.failure);
}

template <class V, class M>
  requires Is<M, PublishStatus>
void fields(V& v, M& m) {
  v.number("step", m.step);
  v.choice("state", m.state, PublishState::kFailed);
  v.version("version", m.version);
  v.digest("content_digest", m.content_digest);
  v.number("bytes", m.bytes);
  v.number("snapshot_ns", m.snapshot_ns);
  v.number("staged_ns", m.staged_ns);
  v.number("paused_ns", m.paused_ns);
  v.bounded("replicas", m.replicas, limits::kReplicaCount);
  v.bounded("code", m.code, static_cast<std::uint8_t>(ErrorCode::kInternal));
  v.sentence("reason", m.reason);
}

// ---- traces ----

template <class V, class M>
  requires Is<M, TraceQuestion>
void fields(V& v, M& m) {
  v.number("age_ns", m.age_ns);
  v.number("max_bytes", m.max_bytes);
  v.number("asked_ns", m.asked_ns);
}

template <class V, class M>
  requires Is<M, TraceProcess>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kPeerNameBytes + 16);
  v.label("host", m.host, limits::kPeerNameBytes);
  v.number("pid", m.pid);
  v.label("boot_id", m.boot_id, limits::kPeerNameBytes);
  v.sentence("failure", m.failure);
  v.number("asked_ns", m.asked_ns);
  v.number("received_ns", m.received_ns);
  v.number("answered_ns", m.answered_ns);
  v.bounded("clock", m.clock, 2);
  v.number("offset_ns", m.offset_ns);
  v.number("uncertainty_ns", m.uncertainty_ns);
  v.number("dropped", m.dropped);
  v.blob("spans", m.spans);
}

template <class V, class M>
  requires Is<M, TraceAnswer>
void fields(V& v, M& m) {
  v.list("processes", m.processes, limits::kSidecarCount + 1);
}

}  // namespace wsync::control
