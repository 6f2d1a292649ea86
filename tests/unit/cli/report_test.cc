#include "deploy/cli/report.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/format.h"
#include "shared/observe/status/status_report.h"

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

TEST(Report, OfAVerificationTellsADifferenceFromWhatCannotBeRead) {
  const control::VerifyRank equal{.replica = "a", .version = {1, 2}, .tensors = 3, .bytes = 96};
  const control::VerifyRank controller{.replica = "a", .rank = 1, .is_controller = true};
  const control::VerifyRank partless{.replica = "a", .rank = 2};
  const control::VerifyRank unreadable{
      .replica = "b", .failure = "this engine gives no read_tensor", .is_unreadable = true};
  control::VerifyRank partly = equal;
  partly.failure = "tensor x is F32 in the version";
  partly.is_unreadable = true;
  control::VerifyRank differs = equal;
  differs.mismatches = {{.tensor = "x"}};
  differs.follows = "all bytes are loaded again";
  control::VerifyRank both = partly;
  both.mismatches = differs.mismatches;
  both.follows = differs.follows;
  // The words of a sentence decide nothing.
  const control::VerifyRank lost{.replica = "c", .failure = "its disc cannot be read back"};
  const auto judged = [](std::vector<control::VerifyRank> ranks) {
    const control::VerifyReply reply{.ranks = std::move(ranks)};
    return std::pair(all_match(reply), only_unreadable(reply));
  };
  EXPECT_EQ(judged({equal, controller}), std::pair(true, false));
  EXPECT_EQ(judged({}), std::pair(false, false));
  EXPECT_EQ(judged({controller}), std::pair(false, false)) << "nothing was compared";
  EXPECT_EQ(judged({equal, controller, unreadable}), std::pair(false, true));
  EXPECT_EQ(judged({equal, partless}), std::pair(true, false));
  EXPECT_EQ(judged({lost}), std::pair(false, false));
  EXPECT_EQ(judged({partly}), std::pair(false, true));
  EXPECT_EQ(judged({differs}), std::pair(false, false));
  EXPECT_EQ(judged({differs, unreadable}), std::pair(false, false));
  EXPECT_EQ(judged({both}), std::pair(false, false));
  EXPECT_EQ(judged({lost, unreadable}), std::pair(false, false));
  const std::string text = to_text(
      control::VerifyReply{.ranks = {equal, controller, partless, unreadable, partly, both}});
  EXPECT_THAT(text, HasSubstr("replica a rank 0: 1.2 3 tensors, 96 B, all equal\n"));
  EXPECT_THAT(text, HasSubstr("replica a rank 1: it is the controller of the replica"));
  EXPECT_THAT(text, HasSubstr("replica a rank 2: it holds no part of any tensor\n"));
  EXPECT_THAT(text, HasSubstr("replica b rank 0: not verified: this engine gives no read_tensor"));
  EXPECT_THAT(text, HasSubstr("in the version; the other 3 tensors are equal\n"));
  EXPECT_THAT(text, HasSubstr("1 DIFFER\n  x: expected"));
  EXPECT_THAT(text, HasSubstr("  all bytes are loaded again\n"));
  EXPECT_THAT(text, Not(HasSubstr("0 tensors")));
}

TEST(Report, OfAStatusCountsProcessesAndHasANoteForASidecar) {
  control::StatusReply reply{.role = "coordinator"};
  reply.sidecars = {{.name = "s0", .pid = 7, .connected = true, .transport = "memfd"},
                    {.name = "s1"}};
  reply.sidecars[0].replicas = {{.replica = "a", .world_size = 2, .ranks_attached = 2}};
  EXPECT_THAT(status::to_text(reply), HasSubstr(" processes 2/2\n"));
  reply.sidecars[0].replicas[0].controller = control::ControllerState::kAttached;
  EXPECT_THAT(status::to_text(reply), HasSubstr(" processes 2/2 (1 rank and its controller)\n"));
  reply.sidecars[0].replicas[0].world_size = 3;
  reply.sidecars[0].replicas[0].controller = control::ControllerState::kMissing;
  EXPECT_THAT(status::to_text(reply), HasSubstr(" processes 2/3 (the controller is missing)\n"));
  EXPECT_THAT(status::to_json(reply).dump(), HasSubstr("\"controller\":\"missing\""));
  reply.sidecars[0].replicas[0].ranks_attached = 3;
  reply.sidecars[0].replicas[0].controller = control::ControllerState::kAttached;
  EXPECT_THAT(status::to_text(reply), HasSubstr(" processes 3/3 (2 ranks and their controller)\n"));
  const std::string text = status::to_text(reply, [](const control::SidecarReport& sidecar) {
    return sidecar.name == "s0" ? std::string("control here") : std::string();
  });
  EXPECT_THAT(text, HasSubstr("connected; staged none; control here\n"));
  EXPECT_THAT(text, HasSubstr("NOT CONNECTED; staged none\n"));
}

TEST(Report, OfAStatusSaysHowManyReplicasServeTheTarget) {
  control::StatusReply reply{.role = "coordinator", .decision = 2, .activity = "idle"};
  reply.fence.epoch = 1;
  reply.sidecars = {{.name = "s0", .connected = true}};
  reply.sidecars[0].replicas = {{.replica = "a", .version = {5, 71}},
                                {.replica = "b", .version = {5, 70}}};
  EXPECT_THAT(status::to_text(reply), Not(HasSubstr("served by"))) << "nothing is decided";
  reply.target = {5, 71};
  EXPECT_THAT(status::to_text(reply),
              HasSubstr("idle; target 5.71 (decision 2, fence epoch 1), served by 1 of 2 replicas; "
                        "rollback target none"));
  reply.sidecars[0].replicas[1].version = {5, 71};
  EXPECT_THAT(status::to_text(reply), HasSubstr("fence epoch 1); rollback target none"));
}

TEST(Report, OfAStatusSaysTheEndOfTheLastUpdateOnce) {
  control::StatusReply reply{.role = "coordinator", .activity = "idle"};
  reply.last = {.version = {5, 71}, .reason = "replica 'b': it hangs", .switch_ns = 9};
  reply.incidents = {{.ago_ns = 1, .text = "a sidecar was lost"},
                     {.ago_ns = 2, .text = "5.71 is partial: replica 'b': it hangs"},
                     {.ago_ns = 3, .text = "5.70 is partial: replica 'b': it hangs"}};
  const std::string text = status::to_text(reply);
  EXPECT_THAT(text, HasSubstr("last update 5.71: partial"));
  EXPECT_THAT(text, Not(HasSubstr("5.71 is partial")));
  EXPECT_THAT(text, HasSubstr("a sidecar was lost"));
  EXPECT_THAT(text, HasSubstr("5.70 is partial")) << "that was another update";
}

TEST(Report, OfAStatusSaysWhenWeightsAreNotEncrypted) {
  control::StatusReply reply;
  reply.data_security = "tls";
  EXPECT_THAT(status::to_text(reply), testing::Not(HasSubstr("without encryption")));
  EXPECT_EQ(status::to_json(reply)["data_security"], "tls");
  reply.data_security = "trusted_network";
  EXPECT_THAT(
      status::to_text(reply),
      HasSubstr("weights go to other hosts without encryption (data_security: trusted_network)"));
}

}  // namespace
}  // namespace wsync::cli
