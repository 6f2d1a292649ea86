// For each role: the messages that its key may send to a coordinator, and that every other one is
// refused with a reason.
#include "trainer_side/coordinator/permissions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <utility>

#include "shared/control/codec.h"

namespace wsync::coordinator {
namespace {

using control::KeyOwner;
using control::KeyRole;
using control::Message;
using control::MessageType;
using testing::HasSubstr;

template <std::size_t... kIndex>
std::vector<Message> one_of_each(std::index_sequence<kIndex...> /*indices*/) {
  return {Message(std::variant_alternative_t<kIndex, control::AnyMessage>())...};
}

std::set<MessageType> allowed_for(KeyRole role) {
  std::set<MessageType> allowed;
  for (const Message& message :
       one_of_each(std::make_index_sequence<std::variant_size_v<control::AnyMessage>>())) {
    // A Hello without a name fits a key without one: names are tested below.
    const auto why = why_not_permitted({.role = role, .name = ""}, message);
    if (!why) {
      allowed.insert(control::type_of(message));
      continue;
    }
    EXPECT_THAT(*why, HasSubstr(control::message_name(control::type_of(message))));
    EXPECT_THAT(*why, HasSubstr(control::role_name(role)));
  }
  return allowed;
}

TEST(Permissions, EachRoleMaySendTheseMessagesAndNoOther) {
  using enum MessageType;
  EXPECT_EQ(allowed_for(KeyRole::kReader), (std::set{kHeartbeat, kStatus, kTraceQuestion}));
  EXPECT_EQ(allowed_for(KeyRole::kPublisher),
            (std::set{kHeartbeat,    kStatus,         kTraceQuestion, kPush,        kCancel,
                      kPlan,         kPublisherHello, kRoundRequest,  kSnapshotEnd, kRoundReplaced,
                      kRoundGivenUp, kProgress,       kPushReply,     kCancelReply, kTraceAnswer,
                      kError,        kLeave,          kRankHello,     kRankServes,  kRankShards,
                      kSnapshotted,  kPartSummed}));
  EXPECT_EQ(allowed_for(KeyRole::kOperator),
            (std::set{kHeartbeat,    kStatus,         kTraceQuestion, kPush,        kCancel,
                      kPlan,         kPublisherHello, kRoundRequest,  kSnapshotEnd, kRoundReplaced,
                      kRoundGivenUp, kProgress,       kPushReply,     kCancelReply, kTraceAnswer,
                      kError,        kLeave,          kRollback,      kPromote,     kVerify,
                      kForget}));
  EXPECT_EQ(
      allowed_for(KeyRole::kSidecar),
      (std::set{kHeartbeat, kHello, kAccept, kRefuse, kStaged, kDecided, kSwitched, kVerifyReply,
                kPlanReply, kTraceAnswer, kForgetReply, kLeave, kError, kRelayReady}));
  EXPECT_EQ(allowed_for(KeyRole::kCoordinator), std::set{kHeartbeat});
}

TEST(Permissions, AReasonSaysWhoseKeyItTakes) {
  EXPECT_EQ(why_not_permitted({.role = KeyRole::kReader, .name = "eve"}, control::Push{}),
            "the key of reader eve may not send the message Push: it takes the key of a publisher "
            "or an operator");
  EXPECT_EQ(why_not_permitted({.role = KeyRole::kSidecar, .name = "host7"}, control::Rollback{}),
            "the key of sidecar host7 may not send the message Rollback: it takes the key of an "
            "operator");
  EXPECT_THAT(*why_not_permitted({.role = KeyRole::kOperator, .name = "alice"}, control::Decide{}),
              HasSubstr("no key is for that"));
}

TEST(Permissions, ASidecarsKeyIsGoodForItsOwnNameAlone) {
  const KeyOwner host7{.role = KeyRole::kSidecar, .name = "host7"};
  EXPECT_EQ(why_not_permitted(host7, control::Hello{.name = "host7"}), std::nullopt);
  for (const std::string name : {"host8", "", "host77", "HOST7", "host7 "}) {
    const auto why = why_not_permitted(host7, control::Hello{.name = name});
    ASSERT_TRUE(why.has_value()) << name << " joined with the key of host7";
    EXPECT_THAT(*why, HasSubstr("good for the sidecar of this name alone, not for '" + name + "'"));
  }
}

}  // namespace
}  // namespace wsync::coordinator
