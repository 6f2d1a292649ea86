// Field lists (fields.h) of the messages between a coordinator and the trainer that publishes to
// it.
#pragma once

#include "shared/base/limits.h"
#include "shared/control/command_fields.h"
#include "shared/control/envelope_fields.h"
#include "shared/control/publisher_messages.h"
#include "shared/control/sidecar_fields.h"

namespace wsync::control {

template <class V, class M>
  requires Is<M, OpenRound>
void fields(V& v, M& m) {
  v.number("request", m.request);
  v.version("version", m.version);
}

template <class V, class M>
  requires Is<M, PublisherHello>
void fields(V& v, M& m) {
  v.label("host", m.host, limits::kPeerNameBytes);
  v.number("pid", m.pid);
  v.number("pid_namespace", m.pid_namespace);
  v.label("boot_id", m.boot_id, limits::kPeerNameBytes);
  v.number("process", m.process);
  v.list("transports", m.transports, limits::kTransportCount);
  v.blob("secret", m.secret);
  v.list("versions", m.versions, limits::kStagedCount);
  v.list("rounds", m.rounds, limits::kStagedCount);
  v.flag("take_over", m.take_over);
}

template <class V, class M>
  requires Is<M, FleetFacts>
void fields(V& v, M& m) {
  v.sentence("stopped", m.stopped);
  v.sentence("not_ready", m.not_ready);
  v.sentence("too_few_engines", m.too_few_engines);
  v.sentence("rollback_waits", m.rollback_waits);
  v.number("seen_step", m.seen_step);
  v.number("used_step", m.used_step);
  v.flag("is_claimed", m.is_claimed);
  v.list("updates", m.updates, limits::kStagedCount);
  v.flag("has_round", m.has_round);
  v.flag("may_stream", m.may_stream);
  v.flag("may_hold_changes", m.may_hold_changes);
  v.number("patch_value_cost", m.patch_value_cost);
  v.version("target", m.target);
  v.number("moved_bytes", m.moved_bytes);
  v.number("moved_total", m.moved_total);
}

template <class V, class M>
  requires Is<M, RoundRequest>
void fields(V& v, M& m) {
  v.number("request", m.request);
  v.version("version", m.version);
  v.digest("layout_digest", m.layout_digest);
  v.digest("content_digest", m.content_digest);
  v.blob("layout", m.layout);
  v.number("bucket_bytes", m.bucket_bytes);
  v.number("arena_bytes", m.arena_bytes);
  v.number("snapshot_ns", m.snapshot_ns);
  v.flag("is_complete", m.is_complete);
  v.flag("was_streamed", m.was_streamed);
  v.flag("is_kept", m.is_kept);
  v.number("deadline_ms", m.deadline_ms);
}

template <class V, class M>
  requires Is<M, SnapshotEnd>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.digest("content_digest", m.content_digest);
  v.number("snapshot_ns", m.snapshot_ns);
  v.sentence("failure", m.failure);
  v.flag("cancelled", m.cancelled);
}

template <class V, class M>
  requires Is<M, RoundReplaced>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.version("by", m.by);
}

template <class V, class M>
  requires Is<M, RoundGivenUp>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.sentence("why", m.why);
}

template <class V, class M>
  requires Is<M, RoundPhase>
void fields(V& v, M& m) {
  v.number("request", m.request);
  v.choice("phase", m.phase, ProgressPhase::kSwitch);
}

template <class V, class M>
  requires Is<M, RoundEnd>
void fields(V& v, M& m) {
  v.number("request", m.request);
  v.flag("superseded", m.superseded);
  v.flag("cancelled", m.cancelled);
  v.part("reply", m.reply);
}

template <class V, class M>
  requires Is<M, RoundLoss>
void fields(V& v, M& m) {
  v.number("request", m.request);
  v.version("version", m.version);
  v.sentence("reason", m.reason);
}

template <class V, class M>
  requires Is<M, VersionDropped>
void fields(V& v, M& m) {
  v.version("version", m.version);
}

template <class V, class M>
  requires Is<M, TargetChanged>
void fields(V& v, M& m) {
  v.choice("how", m.how, TargetChange::kPromoted);
  v.version("target", m.target);
}

}  // namespace wsync::control
