// What coordinators and sidecars are asked for traces with (messages.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/control/envelope.h"

namespace wsync::control {

// What have you traced? Asked of a coordinator, it asks its sidecars, and says how far their clocks
// are from its own; asked of a sidecar, it answers for itself.
struct TraceQuestion {
  static constexpr MessageType kType = MessageType::kTraceQuestion;
  std::uint64_t age_ns = 0;     // spans that ended no longer ago than this; 0 = all that are kept
  std::uint64_t max_bytes = 0;  // of the encoded spans of all processes; 0: only the clocks
  std::int64_t asked_ns = 0;    // the asker's clock, for the answer to echo
};
struct TraceProcess {
  std::string name;  // "sidecar host0"
  std::string host;  // host name, for people
  std::uint32_t pid = 0;
  std::string boot_id;
  std::string failure;           // not empty: it could not be asked, the rest is void
  std::int64_t asked_ns = 0;     // of the question
  std::int64_t received_ns = 0;  // its own clock: when the question came,
  std::int64_t answered_ns = 0;  // and when the answer was sent
  std::uint8_t clock = 0;        // trace ClockKind, from here on as the coordinator found it
  std::int64_t offset_ns = 0;    // its clock minus the coordinator's
  std::uint64_t uncertainty_ns = 0;
  std::uint64_t dropped = 0;  // spans that it had and that are not here
  Bytes spans;                // as trace::encode_spans() has them, on its own clock
};
struct TraceAnswer {
  static constexpr MessageType kType = MessageType::kTraceAnswer;
  std::vector<TraceProcess> processes;
};

}  // namespace wsync::control
