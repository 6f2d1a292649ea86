#include "trainer_side/coordinator/sidecar_delivery.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::coordinator {
namespace {

void send_announce(CoordinatorContext& context, Member& member, const PublishRequested& publish,
                   control::Announce message) {
  member.staged_bytes = 0;
  context.send(member, std::move(message), member.delivery.round());
  member.layout = publish.layout_digest;
}

// An equal boot id does not guarantee a hand-over, which also needs a path that both processes see,
// the same user, and a way to pass descriptors. If the hand-over fails and memfd is not required,
// the bytes go over TCP. (A sidecar without a data address reads nothing over TCP.)
bool may_go_by_tcp(const CoordinatorContext& context, const Member& member) {
  return member.delivery.transport() == control::TransportKind::kMemfd &&
         context.options.transport == TransportPolicy::kAuto &&
         !context.options.data_address.empty() && !member.data_address.empty();
}

Result<> handle_staging_failure(CoordinatorContext& context, Member& member,
                                const control::Staged& staged, const PublishRequested* snapshot,
                                const std::string& chain_source) {
  if (may_go_by_tcp(context, member)) {
    member.handover_failure = staged.failure;
    if (staged.source_lost) return stage(context, member, chain_source);
    if (snapshot == nullptr) return fail(ErrorCode::kIo, "staging failed: " + staged.failure);
    announce(context, member, *snapshot);  // the sidecar has dropped the version
    return {};
  }
  if (staged.source_lost) return stage(context, member, chain_source);
  const std::string before = member.handover_failure.empty()
                                 ? std::string()
                                 : " (the hand-over by memfd: " + member.handover_failure + ")";
  return fail(ErrorCode::kIo, "staging failed: " + staged.failure + before);
}

}  // namespace

void announce(CoordinatorContext& context, Member& member, const PublishRequested& publish) {
  const bool with_layout = member.layout != publish.layout_digest;
  send_announce(context, member, publish,
                member.delivery.announce(publish, with_layout, ++context.last_round,
                                         context.now + context.options.announce));
}

Result<> stage(CoordinatorContext& context, Member& member, const std::string& chain_source) {
  const DeliverySource source = choose_source(context.options, member.boot_id,
                                              !member.handover_failure.empty(), chain_source);
  member.report.transport = source.transport;
  const control::Stage message =
      WSYNC_TRY(member.delivery.stage(source, context.now + context.options.stage));
  context.send(member, message, member.delivery.round());
  return {};
}

Result<> handle_refuse(CoordinatorContext& context, Member& member, const control::Refuse& refuse,
                       const PublishRequested* snapshot) {
  if (!refuse.layout_unknown)
    return fail(ErrorCode::kRefused,
                fmt::format("it refuses {}: {}", refuse.version.to_string(), refuse.reason));
  if (snapshot == nullptr || !member.delivery.may_repeat())
    return fail(ErrorCode::kRefused, "it does not take the layout that was sent");
  send_announce(context, member, *snapshot,
                member.delivery.repeat(*snapshot, ++context.last_round,
                                       context.now + context.options.announce));
  return {};
}

Result<bool> handle_staged(CoordinatorContext& context, Member& member,
                           const control::Staged& staged, const PublishRequested* snapshot,
                           const std::string& chain_source) {
  if (!staged.failure.empty()) {
    WSYNC_TRY(handle_staging_failure(context, member, staged, snapshot, chain_source));
    return false;
  }
  if (snapshot != nullptr && snapshot->content_digest != staged.content_digest &&
      !planted("staged_digest_not_compared"))
    return fail(
        ErrorCode::kDigestMismatch,
        fmt::format("it holds other bytes: content digest {}, expected {}",
                    staged.content_digest.to_string(), snapshot->content_digest.to_string()));
  member.delivery.complete();
  if (!member.holds(staged.version)) member.report.staged.push_back(staged.version);
  return true;
}

}  // namespace wsync::coordinator
