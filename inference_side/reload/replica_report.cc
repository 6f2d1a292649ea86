#include "inference_side/reload/replica_report.h"

#include "shared/base/format.h"

namespace wsync::reload {

using control::ReplicaState;

namespace {

// What it does, and why it has to do it again.
std::string doing(const ReplicaFacts& facts) {
  if (facts.last_failure.empty()) return fmt::format("it is {}", phase_name(facts.phase));
  if (facts.phase == SwitchPhase::kIdle) return facts.last_failure;
  return fmt::format("it is {}; {}", phase_name(facts.phase), facts.last_failure);
}

void report_stopped(const ReplicaFacts& facts, control::ReplicaReport& out) {
  const Version& version = *facts.version;
  const ReplicaState running =
      version == facts.target ? ReplicaState::kServing : ReplicaState::kBehind;
  out.state = facts.quiesced ? ReplicaState::kPaused : running;
  out.reason = facts.version_withdrawn && facts.quiesced
                   ? fmt::format("version {} was withdrawn and {} is not staged on this sidecar",
                                 version.to_string(), facts.target.to_string())
                   : doing(facts);
}

void report_serving(const ReplicaFacts& facts, control::ReplicaReport& out) {
  const Version& version = *facts.version;
  if (version == facts.target || facts.target.none()) {
    out.state = ReplicaState::kServing;
    out.ready = !facts.version_withdrawn;
    if (!out.ready)
      out.reason = fmt::format("version {} was withdrawn and no other one has been decided",
                               version.to_string());
    return;
  }
  out.state = ReplicaState::kBehind;
  out.ready = !facts.stale && !facts.version_withdrawn;
  out.reason = !facts.last_failure.empty()
                   ? facts.last_failure
                   : fmt::format("it serves {}; the target is {}", version.to_string(),
                                 facts.target.to_string());
}

}  // namespace

void report_state(const ReplicaFacts& facts, control::ReplicaReport& out) {
  if (facts.missing) {
    out.state = ReplicaState::kAbsent;
    out.reason = *facts.missing;
  } else if (facts.phase == SwitchPhase::kGathering || facts.phase == SwitchPhase::kLoading ||
             facts.phase == SwitchPhase::kCommitting) {
    out.state = ReplicaState::kLoading;
    out.reason = doing(facts);
  } else if (!facts.version) {
    out.state = facts.written ? ReplicaState::kTainted : ReplicaState::kLoading;
    out.reason =
        !facts.last_failure.empty() ? facts.last_failure : "a rank is waiting for a staged version";
  } else if (!facts.serving) {
    report_stopped(facts, out);
  } else {
    report_serving(facts, out);
  }
}

}  // namespace wsync::reload
