// Messages that request the traces of coordinators and sidecars (messages.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/kinds.h"
#include "shared/control/envelope.h"

namespace wsync::control {

// Requests recorded spans. A coordinator also asks its sidecars, and reports the offset of their
// clocks from its own. A sidecar answers for itself.
struct TraceQuestion {
  static constexpr MessageType kType = MessageType::kTraceQuestion;
  std::uint64_t age_ns = 0;     // maximum time since a span ended; 0 = all retained spans
  std::uint64_t max_bytes = 0;  // of the encoded spans of all processes; 0 = clocks only
  std::int64_t asked_ns = 0;    // the requester's clock; the answer echoes it
};
struct TraceProcess {
  std::string name;  // "sidecar host0"
  std::string host;  // host name, for people
  std::uint32_t pid = 0;
  std::string boot_id;
  std::string failure;                 // not empty: it could not be asked, and the rest is void
  std::int64_t asked_ns = 0;           // echoed from the question
  std::int64_t received_ns = 0;        // its own clock when the question arrived
  std::int64_t answered_ns = 0;        // its own clock when the answer was sent
  ClockKind clock = ClockKind::kSame;  // from here on as determined by the coordinator
  std::int64_t offset_ns = 0;          // its clock minus the coordinator's
  std::uint64_t uncertainty_ns = 0;
  std::uint64_t dropped = 0;  // recorded spans that are not included
  Bytes spans;                // from trace::encode_spans(), on its own clock
};
struct TraceAnswer {
  static constexpr MessageType kType = MessageType::kTraceAnswer;
  std::vector<TraceProcess> processes;
};

}  // namespace wsync::control
