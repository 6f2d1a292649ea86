#include "deploy/cli/report.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/format.h"

namespace wsync::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

control::PushReply reply_of(std::size_t replicas) {
  control::PushReply reply{.ok = true, .version = {1, 2}};
  for (std::size_t i = 0; i < replicas; ++i)
    reply.outcomes.push_back({.replica = fmt::format("replica{}", i),
                              .outcome = control::SwitchOutcome::kCommitted,
                              .version = {1, 2}});
  return reply;
}

TEST(Report, OfTenThousandReplicasIsCutWithACount) {
  const std::string text = to_text(reply_of(10'000));
  EXPECT_LE(std::ranges::count(text, '\n'), 66);
  EXPECT_THAT(text, HasSubstr("replica63 "));
  EXPECT_THAT(text, Not(HasSubstr("replica64 ")));
  EXPECT_THAT(text, HasSubstr("and 9936 more replicas (--json has them all)"));
  EXPECT_EQ(to_json(reply_of(10'000))["replicas"].size(), 10'000U);
}

TEST(Report, NamesTheFailuresOfALargeFleet) {
  control::PushReply reply = reply_of(10'000);
  reply.ok = false;
  reply.outcomes.back().outcome = control::SwitchOutcome::kFailed;
  reply.outcomes.back().reason = "out of memory";
  EXPECT_THAT(to_text(reply), HasSubstr("replica9999 "));
  EXPECT_THAT(to_text(reply), HasSubstr("out of memory"));
}

TEST(Report, SaysWhatTheCoordinatorHasLeftOut) {
  control::PushReply reply = reply_of(1);
  reply.reason = "the list of replicas leaves out 100 of 16484, of which 100 have switched";
  EXPECT_THAT(to_text(reply), HasSubstr("1.2 is served"));
  EXPECT_THAT(to_text(reply), HasSubstr("leaves out 100 of 16484"));
  EXPECT_THAT(to_text(reply_of(2)), Not(HasSubstr("more replicas")));
}

}  // namespace
}  // namespace wsync::cli
