// Field lists (fields.h) of messages between the coordinator and its sidecars.
#pragma once

#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/control/capability.h"
#include "shared/control/envelope_fields.h"
#include "shared/control/sidecar_messages.h"

namespace wsync::control {

template <class V, class M>
  requires Is<M, TransportAddress>
void fields(V& v, M& m) {
  v.label("kind", m.kind, limits::kTransportKindBytes);
  v.label("address", m.address, limits::kAddressBytes);
}

template <class V, class M>
  requires Is<M, Hello>
void fields(V& v, M& m) {
  v.label("name", m.name, limits::kPeerNameBytes);
  v.label("host", m.host, limits::kPeerNameBytes);
  v.number("pid", m.pid);
  v.label("boot_id", m.boot_id, limits::kPeerNameBytes);
  v.list("transports", m.transports, limits::kTransportCount);
  v.part("decision", m.decision);
  v.version("target", m.target);
  v.list("withdrawn", m.withdrawn, limits::kWithdrawnCount);
  v.list("staged", m.staged, limits::kStagedCount);
  v.list("replicas", m.replicas, limits::kReplicaCount);
  v.digest("layout", m.layout);
  v.digest("target_content", m.target_content);
  v.part("origin", m.origin);
  v.number("pid_namespace", m.pid_namespace);
  v.blob("relay_secret", m.relay_secret);
  v.number("capabilities", m.capabilities);
}

template <class V, class M>
  requires Is<M, Welcome>
void fields(V& v, M& m) {
  v.list("transports", m.transports, limits::kTransportCount);
  if (v.has(Capability::kTrainerProcess)) v.number("trainer", m.trainer);
  v.number("capabilities", m.capabilities);
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
  if (v.has(Capability::kParts)) v.blob("parts", m.parts);
}

template <class V, class M>
  requires Is<M, RelayVersion>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.flag("with_layout", m.with_layout);
}

template <class V, class M>
  requires Is<M, RelayReady>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.digest("layout_digest", m.layout_digest);
  v.blob("layout", m.layout);
  v.digest("content_digest", m.content_digest);
  v.number("bucket_bytes", m.bucket_bytes);
  v.number("arena_bytes", m.arena_bytes);
  v.sentence("failure", m.failure);
  if (v.has(Capability::kParts)) v.blob("parts", m.parts);
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
  requires Is<M, PartSource>
void fields(V& v, M& m) {
  v.label("transport", m.transport, limits::kTransportKindBytes);
  v.label("source", m.source, limits::kAddressBytes);
  v.blob("key", m.key);
}

template <class V, class M>
  requires Is<M, Stage>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.label("transport", m.transport, limits::kTransportKindBytes);
  v.label("source", m.source, limits::kAddressBytes);
  v.digest("content_digest", m.content_digest);
  v.blob("key", m.key);
  if (v.has(Capability::kParts)) v.list("parts", m.parts, limits::kTrainerRankCount - 1);
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
  v.flag("is_refused", m.is_refused);
}

template <class V, class M>
  requires Is<M, Decide>
void fields(V& v, M& m) {
  v.number("number", m.number);
  v.choice("kind", m.kind, kLastDecisionKind);
  v.version("target", m.target);
  v.list("withdrawn", m.withdrawn, limits::kWithdrawnCount);
  v.choice("mode", m.mode, PauseMode::kKeep);
  v.choice("caches", m.caches, CachePolicy::kKeep);
  v.number("pause_deadline_ms", m.pause_deadline_ms);
  v.number("load_deadline_ms", m.load_deadline_ms);
  v.digest("content_digest", m.content_digest);
  v.part("origin", m.origin);
  v.label("canary", m.canary, limits::kReplicaNameBytes);
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
  requires Is<M, Turns>
void fields(V& v, M& m) {
  v.number("number", m.number);
  v.number("turns", m.turns);
  v.label("replica", m.replica, limits::kReplicaNameBytes);
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
  v.number("turns", m.turns);
  v.part("last_copy", m.last_copy);
  if (v.has(Capability::kPatchValueCost)) v.number("patch_value_cost", m.patch_value_cost);
  if (v.has(Capability::kLentArenas)) v.flag("lends_arenas", m.lends_arenas);
}

template <class V, class M>
  requires Is<M, Leave>
void fields(V& v, M& m) {
  v.sentence("reason", m.reason);
}

template <class V, class M>
  requires Is<M, ErrorReply>
void fields(V& v, M& m) {
  v.choice("code", m.code, kLastErrorCode);
  v.sentence("message", m.message);
  if (v.has(Capability::kPushOrigin)) v.flag("may_publish", m.may_publish);
}

}  // namespace wsync::control
