// The order in which replicas that adopt are asked to pause: not more at once than there is room
// for, and nobody waits for one that does not answer.
#include "inference_side/sidecar/pause_pacer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr TimePoint kBegin{1'000'000'000};
constexpr std::chrono::nanoseconds kMaxWait = std::chrono::milliseconds(1);
constexpr TimePoint kOver = kBegin + kMaxWait;

PausePacer pacer_of(std::size_t at_once) {
  return PausePacer({.at_once = at_once, .max_wait = kMaxWait, .max_queued = 5 * kMaxWait});
}

std::vector<std::string> sent(const PausePacer::Pauses& pauses) {
  std::vector<std::string> names;
  for (const auto& [replica, command] : pauses)
    names.push_back(replica + std::to_string(command.request));
  return names;
}
reload::SendPause request(std::uint64_t number) { return {.request = number}; }

TEST(PausePacer, TheNextOneIsAskedWhenThereIsAPlace) {
  PausePacer pacer = pacer_of(2);
  EXPECT_EQ(pacer.next_wake(), std::nullopt);
  EXPECT_THAT(sent(pacer.pause("a", request(1), kBegin)), ElementsAre("a1"));
  EXPECT_THAT(sent(pacer.pause("b", request(1), kBegin)), ElementsAre("b1"));
  EXPECT_EQ(pacer.next_wake(), std::nullopt) << "none waits";
  EXPECT_THAT(sent(pacer.pause("c", request(1), kBegin)), IsEmpty());
  EXPECT_THAT(sent(pacer.pause("d", request(1), kBegin)), IsEmpty());
  EXPECT_EQ(pacer.next_wake(), kOver);
  EXPECT_THAT(sent(pacer.end("b", kBegin)), ElementsAre("c1"));
  EXPECT_THAT(sent(pacer.end("b", kBegin)), IsEmpty()) << "one place was free once";
  EXPECT_THAT(sent(pacer.end("unknown", kBegin)), IsEmpty());
  EXPECT_THAT(sent(pacer.end("a", kBegin)), ElementsAre("d1"));
  EXPECT_EQ(pacer.waiting(), 0U);
}

TEST(PausePacer, NobodyWaitsForOneThatDoesNotAnswer) {
  PausePacer pacer = pacer_of(1);
  EXPECT_THAT(sent(pacer.pause("hangs", request(1), kBegin)), ElementsAre("hangs1"));
  for (const auto* replica : {"pauses", "c"})
    EXPECT_THAT(sent(pacer.pause(replica, request(1), kBegin)), IsEmpty());
  EXPECT_THAT(sent(pacer.tick(kOver + std::chrono::nanoseconds(-1))), IsEmpty());
  EXPECT_THAT(sent(pacer.tick(kOver)), ElementsAre("pauses1"));
  const TimePoint paused = kOver + kMaxWait / 2;
  pacer.paused("pauses", paused);
  pacer.paused("hangs", paused);  // it has no place any more
  EXPECT_EQ(pacer.next_wake(), paused + kMaxWait);
  EXPECT_THAT(sent(pacer.tick(kOver + kMaxWait)), IsEmpty()) << "it is paused";
  EXPECT_THAT(sent(pacer.tick(paused + kMaxWait)), ElementsAre("c1"));
}

TEST(PausePacer, WhatIsNoLongerWantedIsNotSent) {
  PausePacer pacer = pacer_of(1);
  EXPECT_THAT(sent(pacer.pause("a", request(1), kBegin)), ElementsAre("a1"));
  EXPECT_THAT(sent(pacer.pause("b", request(1), kBegin)), IsEmpty());
  EXPECT_THAT(sent(pacer.pause("c", request(1), kBegin)), IsEmpty());
  // Its switch has begun anew, and that of b has resumed it because the deadline was over.
  EXPECT_THAT(sent(pacer.pause("c", request(2), kBegin)), IsEmpty());
  EXPECT_THAT(sent(pacer.end("b", kBegin)), IsEmpty());
  EXPECT_EQ(pacer.waiting(), 1U);
  EXPECT_THAT(sent(pacer.end("a", kBegin)), ElementsAre("c2"));
  EXPECT_THAT(sent(pacer.pause("c", request(3), kBegin)), ElementsAre("c3"))
      << "it does not wait for itself";
}

TEST(PausePacer, APauseThatWaitsIsStillWantedWhenTheReplicaHasLostARank) {
  PausePacer pacer = pacer_of(1);
  EXPECT_THAT(sent(pacer.pause("a", request(1), kBegin)), ElementsAre("a1"));
  EXPECT_THAT(sent(pacer.pause("b", request(1), kBegin)), IsEmpty());
  EXPECT_THAT(sent(pacer.leave("b", kBegin)), IsEmpty());
  EXPECT_THAT(sent(pacer.leave("a", kBegin)), ElementsAre("b1")) << "the pause of a takes long";
}

TEST(PausePacer, HoweverManyHangAPauseIsSentInTime) {
  PausePacer pacer = pacer_of(1);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(pacer.pause("hangs" + std::to_string(i), request(1), kBegin).size(),
              i == 0 ? 1U : 0U);
  EXPECT_EQ(pacer.tick(kOver).size(), 1U);
  EXPECT_EQ(pacer.waiting(), 98U);
  EXPECT_EQ(pacer.tick(kBegin + 5 * kMaxWait).size(), 98U);
  EXPECT_EQ(pacer.next_wake(), std::nullopt);
}

TEST(PausePacer, ThereIsAlwaysOnePlace) {
  PausePacer pacer = pacer_of(0);
  EXPECT_THAT(sent(pacer.pause("a", request(1), kBegin)), ElementsAre("a1"));
  EXPECT_THAT(sent(pacer.pause("b", request(1), kBegin)), IsEmpty());
}

}  // namespace
}  // namespace wsync::agent
