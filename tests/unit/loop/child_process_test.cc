#include "shared/loop/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

namespace wsync::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A machine that is busy is slow, and not wrong.
constexpr seconds kFarOff{60};

std::unique_ptr<ChildProcesses> make_children() {
  return ChildProcesses::create("", {}, [] {}).value();
}

ChildOptions program(const std::string& path) {
  return {.name = "child",
          .arguments = {},
          .executable = path,
          .environment = {},
          .errors = ChildErrors::kInherit,
          .keep = {}};
}

TEST(ChildProcesses, AnEndThatIsExpectedIsNoFailure) {
  const auto children = make_children();
  Child& child = **children->start(program("/bin/true"));
  child.may_end();
  EXPECT_TRUE(children->until("its end", kFarOff, [&] { return !child.running(); }));
  EXPECT_TRUE(child.succeeded());
  EXPECT_EQ(child.ending(), "exited with 0");
}

TEST(ChildProcesses, AnEndThatIsNotExpectedIsNamed) {
  const auto children = make_children();
  const Child& child = **children->start(program("/bin/false"));
  const auto waited = children->until("what never comes", kFarOff, [] { return false; });
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code(), ErrorCode::kInternal);
  EXPECT_THAT(waited.error().message(), testing::HasSubstr("exited with 1"));
  EXPECT_FALSE(child.succeeded());
}

TEST(ChildProcesses, WorkOnAThreadGivesItsOutcome) {
  const auto children = make_children();
  EXPECT_TRUE(children->in_thread("the work", kFarOff,
                                  [](const std::atomic<bool>&) { return Result<>(); }));
  const auto failed = children->in_thread(
      "the work", kFarOff,
      [](const std::atomic<bool>&) -> Result<> { return fail(ErrorCode::kIo, "no disc"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "no disc");
}

// Its last task comes to the loop when the call has ended: it must refer to nothing of the call.
TEST(ChildProcesses, WorkThatEndsAfterItsDeadlineLeavesNothingBehind) {
  const auto children = make_children();
  const auto late = children->in_thread(
      "the work", milliseconds(1), [](const std::atomic<bool>& cancelled) -> Result<> {
        while (!cancelled) std::this_thread::yield();
        std::this_thread::sleep_for(milliseconds(50));  // longer than the wait for a cancelled one
        return {};
      });
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadline);
  EXPECT_TRUE(children->pass_time(milliseconds(20)));
}

}  // namespace
}  // namespace wsync::cli
