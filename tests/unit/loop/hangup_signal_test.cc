#include "shared/loop/hangup_signal.h"

#include <csignal>
#include <gtest/gtest.h>

#include "shared/loop/loop.h"

namespace wsync {
namespace {

TEST(HangupSignal, CallsBackOnTheLoopAndTheProcessGoesOn) {
  const auto loop = Loop::create().value();
  int calls = 0;
  const auto hangup = HangupSignal::create(*loop, [&] {
    if (++calls == 2) return loop->stop();
    ::raise(SIGHUP);
  });
  ASSERT_TRUE(hangup.has_value()) << hangup.error().message();
  ::raise(SIGHUP);
  EXPECT_EQ(calls, 0) << "it was called inside the signal handler";
  loop->run();
  EXPECT_EQ(calls, 2);
}

TEST(HangupSignal, LeavesTheHandlerOfTheApplicationAndASecondOneAlone) {
  const auto loop = Loop::create().value();
  struct sigaction own{};
  struct sigaction found{};
  own.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGHUP, &own, nullptr), 0);
  const auto refused = HangupSignal::create(*loop, [] {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  ::sigaction(SIGHUP, nullptr, &found);
  EXPECT_EQ(found.sa_handler, SIG_IGN);
  own.sa_handler = SIG_DFL;
  ASSERT_EQ(::sigaction(SIGHUP, &own, nullptr), 0);
  {
    const auto first = HangupSignal::create(*loop, [] {});
    ASSERT_TRUE(first.has_value()) << first.error().message();
    const auto second = HangupSignal::create(*loop, [] {});
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  }
  ::sigaction(SIGHUP, nullptr, &found);
  EXPECT_EQ(found.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace wsync
