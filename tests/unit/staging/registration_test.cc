// When a sidecar says Hello: until a Welcome answers it, and for each Welcome that answers none.
#include "inference_side/staging/registration.h"

#include <gtest/gtest.h>

namespace wsync::staging {
namespace {

using std::chrono::milliseconds;

const control::Fence kWelcomeFence{.epoch = 2};

TEST(Registration, RepeatsItsHelloUntilAWelcomeAnswersIt) {
  Registration registration(milliseconds(10));
  EXPECT_FALSE(registration.next_wake());
  registration.connect();
  EXPECT_EQ(registration.send(kWelcomeFence, TimePoint{0}), 1U);
  EXPECT_EQ(registration.next_wake(), TimePoint{0} + milliseconds(10));
  EXPECT_FALSE(registration.is_due(TimePoint{0} + milliseconds(9)));
  EXPECT_TRUE(registration.is_due(TimePoint{0} + milliseconds(10)));
  EXPECT_EQ(registration.send(kWelcomeFence, TimePoint{0} + milliseconds(10)), 2U);
  EXPECT_FALSE(registration.welcome(1, kWelcomeFence)) << "it answers the first Hello";
  EXPECT_TRUE(registration.welcomed());
  EXPECT_FALSE(registration.next_wake());
  EXPECT_TRUE(registration.invariants().has_value());
}

TEST(Registration, AWelcomeUnderAnotherFenceOrForNobodyAsksForAHello) {
  Registration registration(milliseconds(10));
  registration.connect();
  (void)registration.send({.epoch = 1}, TimePoint{0});
  EXPECT_TRUE(registration.welcome(1, kWelcomeFence)) << "no Hello was sent under this fence";
  (void)registration.send(kWelcomeFence, TimePoint{1});
  EXPECT_EQ(registration.next_wake(), TimePoint{1} + milliseconds(10)) << "it may be lost";
  EXPECT_FALSE(registration.welcome(2, kWelcomeFence));
  EXPECT_FALSE(registration.welcome(1, kWelcomeFence)) << "it answers an earlier Hello";
  EXPECT_TRUE(registration.welcome(0, kWelcomeFence));
}

TEST(Registration, ALostCoordinatorIsLookedForAfterAWhile) {
  Registration registration(milliseconds(10));
  (void)registration.welcome(0, kWelcomeFence);
  registration.lose(TimePoint{5});
  EXPECT_FALSE(registration.welcomed());
  EXPECT_EQ(registration.next_wake(), TimePoint{5} + milliseconds(10));
}

TEST(Registration, ARequestedHelloIsOverOnceItIsSent) {
  Registration registration(milliseconds(10));
  (void)registration.welcome(0, kWelcomeFence);
  registration.request_hello();
  EXPECT_TRUE(registration.hello_requested());
  (void)registration.send(kWelcomeFence, TimePoint{1});
  EXPECT_FALSE(registration.hello_requested());
}

TEST(Registration, KnowsWhatAnswersAHelloOfThisConnection) {
  Registration registration(milliseconds(10));
  EXPECT_FALSE(registration.is_answer(1)) << "none was sent";
  registration.connect();
  const std::uint64_t before = registration.send(kWelcomeFence, TimePoint{0});
  EXPECT_TRUE(registration.is_answer(before));
  EXPECT_FALSE(registration.is_answer(0)) << "a Welcome that answers none";
  registration.lose(TimePoint{1});
  registration.connect();
  EXPECT_FALSE(registration.is_answer(before));
  const std::uint64_t first = registration.send(kWelcomeFence, TimePoint{2});
  const std::uint64_t again = registration.send(kWelcomeFence, TimePoint{3});
  EXPECT_FALSE(registration.is_answer(before)) << "it may be of another coordinator";
  EXPECT_TRUE(registration.is_answer(first));
  EXPECT_TRUE(registration.is_answer(again));
}

// Its Hello says something new, so that no Welcome before it will do.
TEST(Registration, AWelcomedSidecarRepeatsItsHelloToo) {
  Registration registration(milliseconds(10));
  registration.connect();
  (void)registration.send(kWelcomeFence, TimePoint{0});
  EXPECT_FALSE(registration.welcome(1, kWelcomeFence));
  registration.request_hello();
  EXPECT_EQ(registration.send(kWelcomeFence, TimePoint{1}), 2U);
  EXPECT_FALSE(registration.welcome(1, kWelcomeFence)) << "an answer to the Hello before";
  EXPECT_TRUE(registration.is_due(TimePoint{1} + milliseconds(10)));
  (void)registration.send(kWelcomeFence, TimePoint{1} + milliseconds(10));
  EXPECT_FALSE(registration.welcome(2, kWelcomeFence));
  EXPECT_FALSE(registration.next_wake());
  EXPECT_TRUE(registration.invariants().has_value());
}

// An old Welcome comes late, on a new connection.
TEST(Registration, AnAnswerToAHelloOfTheLastConnectionIsNone) {
  Registration registration(milliseconds(10));
  registration.connect();
  (void)registration.send(kWelcomeFence, TimePoint{0});
  registration.connect();
  (void)registration.send(kWelcomeFence, TimePoint{1});
  EXPECT_FALSE(registration.welcome(1, kWelcomeFence));
  EXPECT_TRUE(registration.is_due(TimePoint{1} + milliseconds(10)));
  registration.lose(TimePoint{2});
  EXPECT_FALSE(registration.welcome(2, kWelcomeFence));
  EXPECT_TRUE(registration.is_due(TimePoint{2} + milliseconds(10)));
}

}  // namespace
}  // namespace wsync::staging
