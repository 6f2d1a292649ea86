#include "trainer_side/coordinator/sidecar_delivery.h"

#include <algorithm>
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

// The round is the newest one.
void announce_in_round(CoordinatorContext& context, Member& member,
                       const PublishRequested& publish) {
  retry_failed_transports(member, context.now);
  // It waits for no relay any more: that was for an earlier version.
  member.copy_from.clear();
  const bool with_layout = member.layout != publish.layout_digest;
  send_announce(context, member, publish,
                member.delivery.announce(publish, with_layout, context.last_round,
                                         context.now + context.options.announce));
}

// The kinds of transport that failed before the present one, for the end of a sentence.
std::string earlier_failures(const Member& member) {
  std::string text;
  for (const auto& [kind, failure] : member.failed_transports)
    if (failure.avoided) text += fmt::format(" (earlier, by {}: {})", kind, failure.why);
  return text;
}

Result<StagedAnswer> handle_staging_failure(CoordinatorContext& context, Member& member,
                                            const control::Staged& staged,
                                            const PublishRequested* snapshot) {
  if (staged.is_refused) return fail(ErrorCode::kRefused, staged.failure);
  if (staged.source_lost) member.delivery.lose_source(staged.failure);
  const std::string kind = member.delivery.transport();
  // What goes wrong at another sidecar of the chain is not a failure of the kind.
  const bool from_trainer = member.delivery.reads_from(context.options.transports);
  const bool has_parts = snapshot != nullptr && !snapshot->parts.empty();
  const bool may_repeat = staged.source_lost || snapshot != nullptr;
  if (from_trainer && may_repeat && has_alternative(context.options, member, kind, has_parts)) {
    const auto pause = note_failed_transport(member, kind, staged.failure, context.now);
    if (const auto next = choose_transport(context.options, member, has_parts); next)
      context.emit(
          Incident{.text = fmt::format(
                       "sidecar '{}' now receives by {}, because {} failed: {}; {} is "
                       "tried again in {} s",
                       member.name, next->kind, kind, staged.failure, kind, pause.count() / 1000)});
    if (staged.source_lost) return StagedAnswer::kStageAgain;
    announce(context, member, *snapshot);  // the sidecar has dropped the version
    return StagedAnswer::kAnnounced;
  }
  if (staged.source_lost) return StagedAnswer::kStageAgain;
  return fail(ErrorCode::kIo, "staging failed: " + staged.failure + earlier_failures(member));
}

}  // namespace

void announce(CoordinatorContext& context, Member& member, const PublishRequested& publish) {
  ++context.last_round;
  announce_in_round(context, member, publish);
}

void announce_to_all(CoordinatorContext& context, const PublishRequested& publish,
                     const std::set<std::string>& left_out) {
  ++context.last_round;
  for (auto& [name, member] : context.roster.change_all())
    if (member.joined && !left_out.contains(name)) announce_in_round(context, member, publish);
}

Result<> stage(CoordinatorContext& context, Member& member, const control::TransportAddress& source,
               const PublishRequested* snapshot) {
  member.report.transport = source.kind;
  const Digest content = snapshot == nullptr ? Digest{} : snapshot->content_digest;
  const bool has_parts = snapshot != nullptr && !snapshot->parts.empty();
  if (has_parts && !contains(member.capabilities, control::Capability::kParts))
    return fail(ErrorCode::kRefused,
                "it runs a release that takes no version of a trainer whose ranks are on several "
                "hosts: upgrade it");
  std::vector<control::PartSource> parts;
  const auto& served = context.options.transports;
  if (has_parts && !snapshot->owners.empty() && !planted("parts_have_no_source") &&
      std::ranges::find(served, source) != served.end())
    parts = WSYNC_TRY(choose_part_sources(context, member, snapshot->owners));
  const auto message =
      member.delivery.stage(source, content, context.now + context.options.stage,
                            pair_key_of(context, member, source), std::move(parts));
  if (!message)
    return fail(message.error().code(), message.error().message() + earlier_failures(member));
  context.send(member, *message, member.delivery.round());
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
  const bool is_known = snapshot == nullptr || snapshot->is_complete;
  if (!is_known && !planted("decided_without_content"))
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("it has staged {} before its content digest was known",
                            staged.version.to_string()));
  if (snapshot != nullptr && is_known && snapshot->content_digest != staged.content_digest &&
      !planted("staged_digest_not_compared"))
    return fail(
        ErrorCode::kDigestMismatch,
        fmt::format("it holds other bytes: content digest {}, expected {}",
                    staged.content_digest.to_string(), snapshot->content_digest.to_string()));
  member.delivery.complete();
  if (note_good_transport(member, member.delivery.transport()))
    context.emit(Incident{.text = fmt::format("sidecar '{}' receives by {} again", member.name,
                                              member.delivery.transport())});
  if (!member.holds(staged.version)) member.report.staged.push_back(staged.version);
  return StagedAnswer::kComplete;
}

}  // namespace wsync::coordinator
