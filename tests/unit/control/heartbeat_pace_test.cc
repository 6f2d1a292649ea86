#include "shared/control/heartbeat_pace.h"

#include <gtest/gtest.h>

namespace wsync::control {
namespace {

using std::chrono::milliseconds;

constexpr TimePoint kStart{1'000'000'000};
constexpr PortTimes kTimes{.heartbeat_interval = milliseconds(200),
                           .silence_deadline = milliseconds(2'000)};

// Heartbeats that a port sends in 12 s, and the longest time between two of them.
struct Sent {
  unsigned count = 0;
  std::chrono::nanoseconds longest{0};
};
Sent sent_in_12_s(const HeartbeatPace& pace) {
  Sent sent;
  TimePoint last = kStart;
  for (unsigned tick = 1; tick <= 60; ++tick) {
    const TimePoint at = kStart + tick * kTimes.heartbeat_interval;
    if (!pace.is_due(last, at)) continue;
    ++sent.count;
    sent.longest = std::max<std::chrono::nanoseconds>(sent.longest, at - last);
    last = at;
  }
  return sent;
}

TEST(HeartbeatPace, ASmallFleetGetsOneInEveryInterval) {
  HeartbeatPace pace(kTimes);
  for (const std::size_t peers : {std::size_t{0}, std::size_t{1}, std::size_t{100}}) {
    pace.set_peers(peers);
    EXPECT_EQ(sent_in_12_s(pace).count, 60U) << peers;
    EXPECT_TRUE(pace.is_due(kStart, kStart)) << "other messages replace none";
  }
}

TEST(HeartbeatPace, ALargeFleetGetsTwoBeforeTheDeadline) {
  HeartbeatPace pace(kTimes);
  for (const std::size_t peers : {std::size_t{256}, std::size_t{1'000}, std::size_t{100'000}}) {
    pace.set_peers(peers);
    const Sent sent = sent_in_12_s(pace);
    EXPECT_LE(sent.count, 20U) << peers;
    EXPECT_LE(2 * (sent.longest + kTimes.heartbeat_interval), kTimes.silence_deadline) << peers;
  }
  pace.set_peers(1);
  EXPECT_EQ(sent_in_12_s(pace).count, 60U) << "the others have gone";
}

TEST(HeartbeatPace, ASidecarFollowsItsCoordinator) {
  HeartbeatPace pace(kTimes);
  pace.follow(kStart);
  EXPECT_EQ(pace.pace(), milliseconds(200)) << "one heartbeat has no pace";
  pace.follow(kStart + milliseconds(600));
  EXPECT_EQ(sent_in_12_s(pace).count, 20U);
  pace.follow(kStart + milliseconds(650));
  EXPECT_EQ(pace.pace(), milliseconds(200)) << "never more often than its own interval";
  pace.follow(kStart + std::chrono::hours(1));
  EXPECT_EQ(sent_in_12_s(pace).count, 15U) << "and never too seldom for the deadline";
  pace.reset();
  EXPECT_EQ(sent_in_12_s(pace).count, 60U);
}

TEST(HeartbeatPace, ALongDeadlineIsNotThatOfThePeers) {
  HeartbeatPace pace(
      {.heartbeat_interval = milliseconds(200), .silence_deadline = milliseconds(60'000)});
  pace.set_peers(1'000);
  EXPECT_LE(pace.pace(), PortTimes{}.silence_deadline / 2 - milliseconds(200));
}

TEST(HeartbeatPace, AnIntervalThatIsLongForItsDeadlineStays) {
  HeartbeatPace pace(
      {.heartbeat_interval = milliseconds(200), .silence_deadline = milliseconds(400)});
  pace.set_peers(1'000);
  EXPECT_EQ(sent_in_12_s(pace).count, 60U);
}

}  // namespace
}  // namespace wsync::control
