// How the state of a replica is reported: whether requests may be routed to it, and why not.
#pragma once

#include <optional>
#include <string>

#include "inference_side/reload/switch_phase.h"
#include "shared/control/messages.h"

namespace wsync::reload {

// The facts that the report of a replica depends on.
struct ReplicaFacts {
  SwitchPhase phase = SwitchPhase::kIdle;
  // Sentence about a rank that is not attached; std::nullopt if all are.
  std::optional<std::string> missing;
  std::optional<Version> version;  // complete on every rank
  bool written = false;            // the bytes of some rank may belong to two versions
  bool quiesced = false;           // no rank can be inside a step
  bool serving = false;
  bool version_withdrawn = false;
  bool stale = false;  // behind the target for longer than allowed
  Version target;
  std::string last_failure;  // empty: none
};

// Fills in `state`, `ready` and `reason`.
void report_state(const ReplicaFacts& facts, control::ReplicaReport& out);

}  // namespace wsync::reload
