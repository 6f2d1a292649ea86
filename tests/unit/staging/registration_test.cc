// When a sidecar says Hello: until it is welcomed, and once for each Welcome that answers none.
#include "inference_side/staging/registration.h"

#include <gtest/gtest.h>

namespace wsync::staging {
namespace {

using std::chrono::milliseconds;

const control::Fence kWelcomeFence{.epoch = 2};

TEST(Registration, RepeatsItsHelloUntilItIsWelcomed) {
  Registration registration(milliseconds(10));
  EXPECT_FALSE(registration.next_wake());
  registration.connect();
  EXPECT_EQ(registration.send(kWelcomeFence, TimePoint{0}), 1U);
  EXPECT_EQ(registration.next_wake(), TimePoint{0} + milliseconds(10));
  EXPECT_FALSE(registration.is_due(TimePoint{0} + milliseconds(9)));
  EXPECT_TRUE(registration.is_due(TimePoint{0} + milliseconds(10)));
  EXPECT_FALSE(registration.welcome(1, kWelcomeFence)) << "it answers the Hello";
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
  EXPECT_FALSE(registration.next_wake()) << "a welcomed sidecar repeats nothing";
}

}  // namespace
}  // namespace wsync::staging
