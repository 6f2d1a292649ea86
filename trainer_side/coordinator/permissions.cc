#include "trainer_side/coordinator/permissions.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/control/codec.h"

namespace wsync::coordinator {
namespace {

using control::KeyRole;
using control::MessageType;

std::string needed_roles(const std::vector<KeyRole>& roles) {
  if (roles.empty()) return "no key is for that";
  std::vector<std::string> names;
  for (const KeyRole role : roles)
    names.push_back(
        fmt::format("{} {}", role == KeyRole::kOperator ? "an" : "a", control::role_name(role)));
  return fmt::format("it takes the key of {}", fmt::join(names, " or "));
}

}  // namespace

std::vector<KeyRole> roles_that_send(MessageType type) {
  switch (type) {
    case MessageType::kHeartbeat:
      return {KeyRole::kCoordinator, KeyRole::kPublisher, KeyRole::kSidecar, KeyRole::kReader,
              KeyRole::kOperator};
    // Of a sidecar.
    case MessageType::kHello:
    case MessageType::kAccept:
    case MessageType::kRefuse:
    case MessageType::kStaged:
    case MessageType::kDecided:
    case MessageType::kSwitched:
    case MessageType::kVerifyReply:
    case MessageType::kPlanReply:
    case MessageType::kForgetReply:
    case MessageType::kRelayReady:
      return {KeyRole::kSidecar};
    case MessageType::kLeave:
    case MessageType::kError:
    case MessageType::kTraceAnswer:
      return {KeyRole::kSidecar, KeyRole::kPublisher, KeyRole::kOperator};
    // Of who looks at the fleet.
    case MessageType::kStatus:
    case MessageType::kTraceQuestion:
      return {KeyRole::kPublisher, KeyRole::kReader, KeyRole::kOperator};
    // Of who publishes.
    case MessageType::kPush:
      if (planted("reader_may_push"))
        return {KeyRole::kPublisher, KeyRole::kReader, KeyRole::kOperator};
      return {KeyRole::kPublisher, KeyRole::kOperator};
    case MessageType::kCancel:
    case MessageType::kPlan:
    // Of a trainer of another process. A push to a coordinator without a trainer is one.
    case MessageType::kPublisherHello:
    case MessageType::kRoundRequest:
    case MessageType::kSnapshotEnd:
    case MessageType::kRoundReplaced:
    case MessageType::kRoundGivenUp:
    case MessageType::kProgress:
    case MessageType::kPushReply:
    case MessageType::kCancelReply:
      return {KeyRole::kPublisher, KeyRole::kOperator};
    // Of a rank of a trainer, to rank 0 on another host.
    case MessageType::kRankHello:
    case MessageType::kRankServes:
    case MessageType::kRankShards:
    case MessageType::kSnapshotted:
    case MessageType::kPartSummed:
      return {KeyRole::kPublisher};
    // Of who operates the fleet.
    case MessageType::kRollback:
    case MessageType::kPromote:
    case MessageType::kVerify:
    case MessageType::kForget:
      return {KeyRole::kOperator};
    // These are not for a coordinator.
    case MessageType::kWelcome:
    case MessageType::kAnnounce:
    case MessageType::kStage:
    case MessageType::kDecide:
    case MessageType::kAbort:
    case MessageType::kRollbackReply:
    case MessageType::kStatusReply:
    case MessageType::kEngineHello:
    case MessageType::kEngineWelcome:
    case MessageType::kPrepare:
    case MessageType::kPrepared:
    case MessageType::kRelease:
    case MessageType::kPause:
    case MessageType::kPaused:
    case MessageType::kLoad:
    case MessageType::kBucketReady:
    case MessageType::kBucketAck:
    case MessageType::kLoaded:
    case MessageType::kCommit:
    case MessageType::kCommitted:
    case MessageType::kResume:
    case MessageType::kResumed:
    case MessageType::kReadDigests:
    case MessageType::kDigests:
    case MessageType::kPublishStatus:
    case MessageType::kPing:
    case MessageType::kPong:
    case MessageType::kTurns:
    case MessageType::kPromoteReply:
    case MessageType::kUnmapArenas:
    case MessageType::kEngineStarting:
    case MessageType::kReadVersion:
    case MessageType::kScrub:
    case MessageType::kScrubbed:
    case MessageType::kFleetFacts:
    case MessageType::kRoundPhase:
    case MessageType::kRoundEnd:
    case MessageType::kRoundLoss:
    case MessageType::kVersionDropped:
    case MessageType::kTargetChanged:
    case MessageType::kRelayVersion:
    case MessageType::kPatchAhead:
    case MessageType::kPartWanted:
    case MessageType::kPartsKept:
      return {};
  }
  return {};
}

std::optional<std::string> why_not_permitted(const control::KeyOwner& sender,
                                             const control::Message& message) {
  const MessageType type = control::type_of(message);
  const std::vector<KeyRole> roles = roles_that_send(type);
  if (std::ranges::find(roles, sender.role) == roles.end())
    return fmt::format("the key of {} may not send the message {}: {}", sender.text(),
                       control::message_name(type), needed_roles(roles));
  const auto* hello = std::get_if<control::Hello>(&message);
  if (hello == nullptr || hello->name == sender.name || planted("sidecar_key_for_any_name"))
    return std::nullopt;
  return fmt::format(
      "the key of {} is good for the sidecar of this name alone, not for '{}': make "
      "a key with `wsync keys add sidecar {}`, or set `name: {}`",
      sender.text(), hello->name, hello->name, sender.name);
}

}  // namespace wsync::coordinator
