// The phases of a switch: which moves the table has.
#include "inference_side/reload/switch_phase.h"

#include <array>
#include <gtest/gtest.h>
#include <set>
#include <string>

namespace wsync::reload {
namespace {

using enum SwitchPhase;

constexpr std::array kPhases = {kIdle, kPausing, kGathering, kLoading, kCommitting, kResuming};

// What must never happen: a rank is written while it may be inside a step, commits what not every
// rank has loaded, or resumes with what was never committed in this switch.
TEST(SwitchPhase, ALoadFollowsAPauseAndACommitFollowsALoad) {
  for (const SwitchPhase from : kPhases) {
    if (from != kLoading) {
      EXPECT_FALSE(is_legal(from, kCommitting)) << phase_name(from);
    }
  }
  EXPECT_FALSE(is_legal(kIdle, kLoading));
  EXPECT_FALSE(is_legal(kResuming, kLoading));
  EXPECT_FALSE(is_legal(kResuming, kResuming));
  EXPECT_FALSE(is_legal(kIdle, kGathering));
  EXPECT_FALSE(is_legal(kPausing, kGathering)) << "a lost rank counts as paused";
}

TEST(SwitchPhase, EveryPhaseEndsInIdleAndHasAName) {
  std::set<std::string> names;
  for (const SwitchPhase from : kPhases) {
    if (from != kIdle) {
      EXPECT_TRUE(is_legal(from, kIdle)) << phase_name(from);
    }
    names.emplace(phase_name(from));
  }
  EXPECT_EQ(names.size(), kPhases.size());
}

}  // namespace
}  // namespace wsync::reload
