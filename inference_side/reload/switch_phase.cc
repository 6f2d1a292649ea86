#include "inference_side/reload/switch_phase.h"

#include <array>

namespace wsync::reload {
namespace {

constexpr auto kSwitchTransitions = [] {
  using enum SwitchPhase;
  return std::array<Transition<SwitchPhase>, 21>{{
      {kIdle, "the target can be loaded, and every rank is attached", kPausing,
       "PAUSE to the leader, unless no rank can be inside a step"},
      {kIdle, "every rank holds one version that may run, and none can be inside a step", kResuming,
       "RESUME to the leader"},
      {kPausing, "every rank is paused, and the target can be loaded", kLoading, "LOAD"},
      {kPausing,
       "there is nothing to load, the leader has declined, or the deadline has passed; the version "
       "may run",
       kResuming, "RESUME to the leader"},
      {kPausing, "there is nothing to load and nothing that may run, or a rank is missing", kIdle,
       "the outcome is `failed` after the deadline, or at once if the leader has declined or every "
       "rank is lost"},
      {kGathering, "the rank is back, and a rank may be inside a step", kPausing,
       "PAUSE to the leader"},
      {kGathering, "the rank is back, and the target can be loaded", kLoading, "LOAD"},
      {kGathering, "the rank is back, and there is nothing to load", kResuming,
       "RESUME to the leader"},
      {kGathering, "the deadline has passed, every rank is lost, or nothing may run", kIdle,
       "the outcome is `tainted` or `failed` after the deadline, `failed` without a rank"},
      {kLoading, "every rank has loaded", kCommitting, "COMMIT to every rank"},
      {kLoading, "a load has failed, or its version is no longer needed; another one can be loaded",
       kLoading, "cancel the load; LOAD"},
      {kLoading, "the load could not begin, and the version before may run", kResuming,
       "RESUME to the leader"},
      {kLoading, "a rank is lost, and others are attached", kGathering, "cancel the load"},
      {kLoading, "nothing can be loaded, every rank is lost, or the deadline has passed", kIdle,
       "cancel the load; the outcome is `tainted` after a deadline or a failure, `failed` without "
       "a rank"},
      {kCommitting, "every rank has committed", kResuming, "RESUME to the leader"},
      {kCommitting, "a commit has failed, or a newer target can be loaded", kLoading, "LOAD"},
      {kCommitting, "a rank is lost, and others are attached", kGathering, ""},
      {kCommitting, "the version was withdrawn, every rank is lost, or the deadline has passed",
       kIdle, "the outcome is `tainted` after the deadline, `failed` without a rank"},
      {kResuming,
       "the leader has resumed or has declined, every rank is lost, or the deadline has passed",
       kIdle, "the outcome is `committed`, `rolled back`, `behind`, or `failed`"},
      {kResuming, "a newer target can be loaded", kPausing, "PAUSE to the leader"},
      {kResuming, "a rank is lost, and others are attached", kGathering, ""},
  }};
}();

}  // namespace

std::string_view phase_name(SwitchPhase phase) noexcept {
  switch (phase) {
    case SwitchPhase::kIdle:
      return "idle";
    case SwitchPhase::kPausing:
      return "pausing";
    case SwitchPhase::kGathering:
      return "waiting for a lost rank";
    case SwitchPhase::kLoading:
      return "loading";
    case SwitchPhase::kCommitting:
      return "committing";
    case SwitchPhase::kResuming:
      return "resuming";
  }
  return "?";
}

bool is_legal(SwitchPhase from, SwitchPhase to) noexcept {
  return allows<SwitchPhase>(kSwitchTransitions, from, to);
}

TransitionTable switch_transitions() {
  return describe<SwitchPhase>("ReplicaSwitch", "The switch of one replica to another version.",
                               kSwitchTransitions, phase_name);
}

}  // namespace wsync::reload
