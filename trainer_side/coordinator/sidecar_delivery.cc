#include "trainer_side/coordinator/sidecar_delivery.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/transport_choice.h"

namespace wsync::coordinator {
namespace {

void send_announce(CoordinatorContext& context, Member& member, const PublishRequested& publish,
                   control::Announce message) {
  member.staged_bytes = 0;
  context.send(member, std::move(message), member.delivery.round());
  member.layout = publish.layout_digest;
}

Result<StagedAnswer> handle_staging_failure(CoordinatorContext& context, Member& member,
                                            const control::Staged& staged,
                                            const PublishRequested* snapshot) {
  const std::string& kind = member.delivery.transport();
  // The loss of another sidecar in the chain is not a failure of the kind.
  const bool lost_relay =
      staged.source_lost && !member.delivery.reads_from(context.options.transports);
  if (!lost_relay && has_alternative(context.options, member, kind)) {
    member.failed_transports[kind] = staged.failure;
    if (staged.source_lost) return StagedAnswer::kStageAgain;
    if (snapshot == nullptr) return fail(ErrorCode::kIo, "staging failed: " + staged.failure);
    announce(context, member, *snapshot);  // the sidecar has dropped the version
    return StagedAnswer::kAnnounced;
  }
  if (staged.source_lost) return StagedAnswer::kStageAgain;
  std::string before;
  for (const auto& [failed, why] : member.failed_transports)
    before += fmt::format(" (earlier, by {}: {})", failed, why);
  return fail(ErrorCode::kIo, "staging failed: " + staged.failure + before);
}

}  // namespace

void announce(CoordinatorContext& context, Member& member, const PublishRequested& publish) {
  const bool with_layout = member.layout != publish.layout_digest;
  send_announce(context, member, publish,
                member.delivery.announce(publish, with_layout, ++context.last_round,
                                         context.now + context.options.announce));
}

Result<> stage(CoordinatorContext& context, Member& member,
               const control::TransportAddress& source) {
  member.report.transport = source.kind;
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

Result<StagedAnswer> handle_staged(CoordinatorContext& context, Member& member,
                                   const control::Staged& staged,
                                   const PublishRequested* snapshot) {
  if (!staged.failure.empty()) return handle_staging_failure(context, member, staged, snapshot);
  if (snapshot != nullptr && snapshot->content_digest != staged.content_digest &&
      !planted("staged_digest_not_compared"))
    return fail(
        ErrorCode::kDigestMismatch,
        fmt::format("it holds other bytes: content digest {}, expected {}",
                    staged.content_digest.to_string(), snapshot->content_digest.to_string()));
  member.delivery.complete();
  if (!member.holds(staged.version)) member.report.staged.push_back(staged.version);
  return StagedAnswer::kComplete;
}

}  // namespace wsync::coordinator
