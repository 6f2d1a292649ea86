// Field lists (fields.h) of messages of the engine link.
#pragma once

#include "shared/base/ipc_buffers.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/control/engine_messages.h"
#include "shared/control/envelope_fields.h"

namespace wsync::control {

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
  v.choice("dtype", m.dtype, kLastDType);
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
  v.choice("take", m.take, TakeMode::kBorrow);
  v.flag("any_layout", m.any_layout);
  v.choice("state", m.state, RankState::kTainted);
  v.version("active", m.active);
  v.number("step", m.step);
  v.list("tensors", m.tensors, limits::kTensorCount);
  v.label("gpu", m.gpu, limits::kGpuUuidBytes);
  v.flag("takes_patches", m.takes_patches);
  v.sentence("not_scrubbed", m.not_scrubbed);
  v.flag("has_controller", m.has_controller);
  v.number("capabilities", m.capabilities);
}

template <class V, class M>
  requires Is<M, EngineStarting>
void fields(V& v, M& m) {
  v.bounded("world_size", m.world_size, limits::kReplicaRankCount);
  v.flag("is_suspended", m.is_suspended);
}

template <class V, class M>
  requires Is<M, ReadVersion>
void fields(V& v, M& m) {
  v.flag("has_step", m.has_step);
  v.number("step", m.step);
  v.version("after", m.after);
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
  v.number("capabilities", m.capabilities);
}

template <class V, class M>
  requires Is<M, Prepare>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.digest("layout_digest", m.layout_digest);
  v.blob("layout", m.layout);
  v.number("bucket_bytes", m.bucket_bytes);
  v.number("arena_bytes", m.arena_bytes);
  v.flag("is_verified", m.is_verified);
}

template <class V, class M>
  requires Is<M, Prepared>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.sentence("failure", m.failure);
  v.flag("is_refused", m.is_refused);
}

template <class V, class M>
  requires Is<M, Release>
void fields(V& v, M& m) {
  v.version("version", m.version);
}

template <class V, class M>
  requires Is<M, UnmapArenas>
void fields(V& /*v*/, M& /*m*/) {}

template <class V, class M>
  requires Is<M, Pause>
void fields(V& v, M& m) {
  v.choice("mode", m.mode, PauseMode::kKeep);
  v.number("deadline_ms", m.deadline_ms);
  v.version("version", m.version);
  v.number("bytes", m.bytes);
  v.choice("caches", m.caches, CachePolicy::kKeep);
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
  v.version("patch_base", m.patch_base);
  v.number("patch_bytes", m.patch_bytes);
}

template <class V, class M>
  requires Is<M, PatchAhead>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.version("patch_base", m.patch_base);
  v.number("patch_bytes", m.patch_bytes);
  v.bounded("copy_threads", m.copy_threads, limits::kCopyThreadCount);
}

template <class V, class M>
  requires Is<M, BucketReady>
void fields(V& v, M& m) {
  v.number("bucket", m.bucket);
  v.number("slot", m.slot);
}

template <class V, class M>
  requires Is<M, BucketAck>
void fields(V& v, M& m) {
  v.number("bucket", m.bucket);
  v.sentence("failure", m.failure);
}

template <class V, class M>
  requires Is<M, SplitSum>
void fields(V& v, M& m) {
  v.number("words.product", m.words.product);
  v.number("words.sum", m.words.sum);
  v.number("edges.product", m.edges.product);
  v.number("edges.sum", m.edges.sum);
}

static_assert(2 * limits::kTensorCount * sizeof(SplitSum) <= limits::kMessageBytes / 2,
              "both sums of a rank's tensors fit in a message");
template <class V, class M>
  requires Is<M, Loaded>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.number("bytes", m.bytes);
  v.number("copy_ns", m.copy_ns);
  v.sentence("failure", m.failure);
  v.list("sums", m.sums, limits::kTensorCount);
  v.list("before", m.before, limits::kTensorCount);
  v.number("written_bytes", m.written_bytes);
}

template <class V, class M>
  requires Is<M, Scrub>
void fields(V& v, M& m) {
  v.number("pass", m.pass);
  v.number("share_ppm", m.share_ppm);
}

template <class V, class M>
  requires Is<M, Scrubbed>
void fields(V& v, M& m) {
  v.number("pass", m.pass);
  v.version("version", m.version);
  v.number("age_ns", m.age_ns);
  v.number("cpu_ns", m.cpu_ns);
  v.sentence("failure", m.failure);
  v.list("sums", m.sums, limits::kTensorCount);
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
  v.flag("is_unreadable", m.is_unreadable);
}

template <class V, class M>
  requires Is<M, Ping>
void fields(V&, M&) {}

template <class V, class M>
  requires Is<M, Pong>
void fields(V&, M&) {}

}  // namespace wsync::control
