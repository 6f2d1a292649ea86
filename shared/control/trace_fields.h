// Field lists (fields.h) of trace messages.
#pragma once

#include "shared/base/limits.h"
#include "shared/control/envelope_fields.h"
#include "shared/control/trace_messages.h"

namespace wsync::control {

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
  v.choice("clock", m.clock, ClockKind::kUnknown);
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
