// The outcome that a decision is owed: once, in time, and with what was measured.
#include "inference_side/reload/pending_outcome.h"

#include <gtest/gtest.h>

namespace wsync::reload {
namespace {

using control::SwitchOutcome;

const control::Decision kDecision{.fence = {.epoch = 1}, .number = 4};

TEST(PendingOutcome, IsSettledOnce) {
  PendingOutcome outcome;
  EXPECT_FALSE(outcome.settle(kDecision, SwitchOutcome::kFailed, "")) << "none is owed";
  outcome.owe(TimePoint{100});
  EXPECT_TRUE(outcome.owed());
  EXPECT_FALSE(outcome.is_due(TimePoint{99}));
  EXPECT_TRUE(outcome.is_due(TimePoint{100}));
  const auto done = outcome.settle(kDecision, SwitchOutcome::kBehind, "why");
  ASSERT_TRUE(done);
  EXPECT_EQ(done->decision, kDecision);
  EXPECT_EQ(done->outcome.reason, "why");
  EXPECT_FALSE(outcome.owed());
  EXPECT_FALSE(outcome.is_due(TimePoint{1000}));
  EXPECT_FALSE(outcome.settle(kDecision, SwitchOutcome::kBehind, ""));
  EXPECT_TRUE(outcome.invariants().has_value());
}

TEST(PendingOutcome, CatchingUpOwesNothing) {
  PendingOutcome outcome;
  outcome.owe(TimePoint{100});
  outcome.owe(std::nullopt);
  EXPECT_FALSE(outcome.owed());
}

TEST(PendingOutcome, TheDeadlineOfADeferredOneBeginsWithTheSwitch) {
  PendingOutcome outcome;
  outcome.begin(TimePoint{50});
  EXPECT_FALSE(outcome.owed()) << "none is owed";
  outcome.defer();
  EXPECT_TRUE(outcome.owed());
  EXPECT_TRUE(outcome.deferred());
  EXPECT_FALSE(outcome.deadline());
  EXPECT_FALSE(outcome.is_due(TimePoint{1'000'000}));
  EXPECT_TRUE(outcome.invariants().has_value());
  outcome.begin(TimePoint{100});
  outcome.begin(TimePoint{200});  // another attempt
  EXPECT_FALSE(outcome.deferred());
  EXPECT_TRUE(outcome.is_due(TimePoint{100}));
  outcome.defer();
  EXPECT_TRUE(outcome.settle(kDecision, SwitchOutcome::kFailed, "lost"));
  EXPECT_FALSE(outcome.owed());
}

TEST(PendingOutcome, MeasuresThePartsOfASwitch) {
  PendingOutcome outcome;
  outcome.owe(TimePoint{100});
  outcome.pause_sent(TimePoint{10});
  outcome.paused(TimePoint{13});
  outcome.paused(TimePoint{15});  // a second pass over the ranks
  outcome.load_sent(TimePoint{20});
  outcome.add_bytes(7);
  outcome.add_bytes(5);
  EXPECT_EQ(outcome.bytes(), 12U);
  outcome.loaded(TimePoint{26});
  outcome.resumed(TimePoint{30});
  const auto done = outcome.settle(kDecision, SwitchOutcome::kCommitted, "");
  ASSERT_TRUE(done);
  EXPECT_EQ(done->outcome.wait_ns, 3U);
  EXPECT_EQ(done->outcome.load_ns, 6U);
  EXPECT_EQ(done->outcome.paused_ns, 17U);
  EXPECT_EQ(done->outcome.bytes, 12U);
  EXPECT_EQ(outcome.last_paused_ns(), 17U);
}

TEST(PendingOutcome, AFailedSwitchLeavesTheLastPauseAsItWas) {
  PendingOutcome outcome;
  outcome.owe(TimePoint{100});
  outcome.pause_sent(TimePoint{10});
  outcome.paused(TimePoint{13});
  outcome.load_sent(TimePoint{20});
  outcome.load_void();
  const auto done = outcome.settle(kDecision, SwitchOutcome::kTainted, "");
  ASSERT_TRUE(done);
  EXPECT_EQ(done->outcome.load_ns, 0U);
  EXPECT_EQ(done->outcome.paused_ns, 0U);
  EXPECT_EQ(outcome.last_paused_ns(), 0U);
  outcome.owe(TimePoint{200});
  outcome.not_paused(TimePoint{50});
  outcome.resumed(TimePoint{54});
  EXPECT_EQ(outcome.settle(kDecision, SwitchOutcome::kRolledBack, "")->outcome.paused_ns, 4U);
}

}  // namespace
}  // namespace wsync::reload
