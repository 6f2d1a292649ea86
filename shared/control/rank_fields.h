// Field lists (fields.h) of messages of the rank link.
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/control/envelope_fields.h"
#include "shared/control/rank_messages.h"

namespace wsync::control {

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
  requires Is<M, RankServes>
void fields(V& v, M& m) {
  v.label("host", m.host, limits::kPeerNameBytes);
  v.label("boot_id", m.boot_id, limits::kPeerNameBytes);
  v.list("transports", m.transports, limits::kTransportCount);
  v.blob("secret", m.secret);
}

template <class V, class M>
  requires Is<M, PartWindow>
void fields(V& v, M& m) {
  v.number("bucket", m.bucket);
  v.number("tensor", m.tensor);
  v.number("offset", m.offset);
  v.number("bytes", m.bytes);
  v.number("position", m.position);
}

template <class V, class M>
  requires Is<M, PartWanted>
void fields(V& v, M& m) {
  v.number("question", m.question);
  v.number("step", m.step);
  v.bounded("bucket_count", m.bucket_count, limits::kPartBucketCount);
  v.list("windows", m.windows, limits::kPartBucketCount);
  v.list("carried", m.carried, limits::kTensorCount);
}

template <class V, class M>
  requires Is<M, WordSum>
void fields(V& v, M& m) {
  v.number("product", m.product);
  v.number("sum", m.sum);
}

template <class V, class M>
  requires Is<M, CarriedShard>
void fields(V& v, M& m) {
  v.number("tensor", m.tensor);
  v.blob("bytes", m.bytes);
}

template <class V, class M>
  requires Is<M, PartSummed>
void fields(V& v, M& m) {
  v.number("question", m.question);
  v.number("step", m.step);
  v.sentence("failure", m.failure);
  v.list("sums", m.sums, limits::kModelBytesMax / limits::kLeafBytes);
  v.list("carried", m.carried, limits::kTensorCount);
}

template <class V, class M>
  requires Is<M, KeptPart>
void fields(V& v, M& m) {
  v.number("step", m.step);
  v.version("version", m.version);
  v.part("fence", m.fence);
  v.digest("layout", m.layout);
}

template <class V, class M>
  requires Is<M, PartsKept>
void fields(V& v, M& m) {
  v.list("parts", m.parts, limits::kHeldPartCount);
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
  v.choice("code", m.code, kLastErrorCode);
  v.sentence("reason", m.reason);
  v.list("problems", m.problems, 1);
}

}  // namespace wsync::control
