// When an engine is asked, when it is silent, and what counts as an answer.
#include "inference_side/sidecar/engine_liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr reload::EngineId kFirst{1};
constexpr reload::EngineId kSecond{2};

bool never(reload::EngineId /*engine*/) { return false; }

TEST(EngineLiveness, AnEngineThatAnswersIsAskedAgainAndNeverSilent) {
  EngineLiveness liveness;
  liveness.attach(kFirst);
  for (int i = 0; i < 20; ++i) {
    const auto due = liveness.tick(never);
    EXPECT_THAT(due.ping, ElementsAre(kFirst));
    EXPECT_THAT(due.silent, IsEmpty());
    EXPECT_FALSE(liveness.heard(kFirst));
  }
}

TEST(EngineLiveness, AnEngineThatDoesNotAnswerIsSilentOnceAndIsNotAskedAgain) {
  EngineLiveness liveness;
  liveness.attach(kFirst);
  liveness.attach(kSecond);
  EXPECT_THAT(liveness.tick(never).ping, ElementsAre(kFirst, kSecond));
  for (std::uint32_t i = 1; i < EngineLiveness::kTicks; ++i) {
    EXPECT_FALSE(liveness.heard(kSecond));
    EXPECT_THAT(liveness.tick(never).ping, ElementsAre(kSecond)) << "one Ping at a time";
    EXPECT_FALSE(liveness.is_silent(kFirst));
  }
  EXPECT_THAT(liveness.tick(never).silent, ElementsAre(kFirst));
  EXPECT_TRUE(liveness.is_silent(kFirst));
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(liveness.heard(kSecond));
    const auto due = liveness.tick(never);
    EXPECT_THAT(due.ping, ElementsAre(kSecond)) << "the queue of a silent engine grows";
    EXPECT_THAT(due.silent, IsEmpty());
  }
  EXPECT_TRUE(liveness.heard(kFirst));
  EXPECT_FALSE(liveness.is_silent(kFirst));
  EXPECT_FALSE(liveness.heard(kFirst));
  EXPECT_FALSE(liveness.heard(kSecond));
  EXPECT_THAT(liveness.tick(never).ping, ElementsAre(kFirst, kSecond));
}

TEST(EngineLiveness, ABusyEngineIsNotCounted) {
  EngineLiveness liveness;
  liveness.attach(kFirst);
  EXPECT_THAT(liveness.tick(never).ping, ElementsAre(kFirst));
  for (int i = 0; i < 20; ++i) {
    const auto due = liveness.tick([](reload::EngineId) { return true; });
    EXPECT_THAT(due.ping, IsEmpty());
    EXPECT_THAT(due.silent, IsEmpty());
  }
  for (std::uint32_t i = 1; i < EngineLiveness::kTicks; ++i)
    EXPECT_THAT(liveness.tick(never).silent, IsEmpty());
  EXPECT_THAT(liveness.tick(never).silent, ElementsAre(kFirst)) << "it owes the first answer";
}

TEST(EngineLiveness, AnEngineThatIsGoneIsForgotten) {
  EngineLiveness liveness;
  liveness.attach(kFirst);
  liveness.detach(kFirst);
  EXPECT_THAT(liveness.tick(never).ping, IsEmpty());
  EXPECT_FALSE(liveness.heard(kFirst));
  EXPECT_FALSE(liveness.is_silent(kFirst));
  EXPECT_EQ(EngineLiveness::interval(std::chrono::milliseconds(1)), std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace wsync::agent
