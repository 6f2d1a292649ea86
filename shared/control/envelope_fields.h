// Field lists (fields.h) of the parts that several groups of messages share.
#pragma once

#include <concepts>
#include <type_traits>

#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/control/envelope.h"

namespace wsync::control {

// True if M is T or const T.
template <class M, class T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

template <class V, class M>
  requires Is<M, FleetId>
void fields(V& v, M& m) {
  v.number("high", m.high);
  v.number("low", m.low);
}

template <class V, class M>
  requires Is<M, Fence>
void fields(V& v, M& m) {
  v.number("epoch", m.epoch);
  v.number("run_id[0]", m.run_id[0]);
  v.number("run_id[1]", m.run_id[1]);
  v.part("fleet", m.fleet);
}

template <class V, class M>
  requires Is<M, Decision>
void fields(V& v, M& m) {
  v.part("fence", m.fence);
  v.number("number", m.number);
}

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
  v.choice("turn", m.turn, ReplicaTurn::kHeld);
  v.choice("last_load", m.last_load, LoadKind::kPatch);
  v.number("last_written_bytes", m.last_written_bytes);
  v.number("last_load_bytes", m.last_load_bytes);
  v.version("proved", m.proved);
  v.number("proved_ago_ns", m.proved_ago_ns);
  v.sentence("not_scrubbed", m.not_scrubbed);
  v.number("mismatches", m.mismatches);
  v.sentence("last_mismatch", m.last_mismatch);
  v.choice("controller", m.controller, ControllerState::kAttached);
}

template <class V, class M>
  requires Is<M, CopyReport>
void fields(V& v, M& m) {
  v.version("version", m.version);
  v.version("base", m.base);
  v.number("bytes", m.bytes);
  v.number("travelled_bytes", m.travelled_bytes);
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
  if (v.has(Capability::kSuspendedOutcomes)) v.flag("is_suspended", m.is_suspended);
}

template <class V, class M>
  requires Is<M, Problem>
void fields(V& v, M& m) {
  v.choice("kind", m.kind, ProblemKind::kOther);
  v.label("tensor", m.tensor, limits::kTensorNameBytes);
  v.sentence("detail", m.detail);
  v.label("nearest", m.nearest, limits::kTensorNameBytes);
  v.sentence("expected", m.expected);
  v.sentence("found", m.found);
}

}  // namespace wsync::control
