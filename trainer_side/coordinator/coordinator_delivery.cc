// Coordinator: how a version is brought to one sidecar, inside a round or to catch up.
#include <algorithm>
#include <chrono>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::publish {
namespace {

constexpr std::uint32_t kStageAttempts = 8;
constexpr std::chrono::milliseconds kCatchUpRetry{1'000};

}  // namespace

void Coordinator::announce(Member& member, const PublishRequested& publish) {
  member.delivery = {.phase = DeliveryPhase::kAnnounced,
                     .version = publish.version,
                     .round = ++next_round_,
                     .deadline = context_.now + context_.options.announce};
  member.staged_bytes = 0;
  const bool with_layout = member.layout != publish.layout_digest;
  context_.send(member,
                control::Announce{.version = publish.version,
                                  .layout_digest = publish.layout_digest,
                                  .layout = with_layout ? publish.layout : Bytes{},
                                  .content_digest = publish.content_digest,
                                  .bucket_bytes = publish.bucket_bytes,
                                  .arena_bytes = publish.arena_bytes},
                member.delivery.round);
  member.layout = publish.layout_digest;
}

void Coordinator::on_accept(Member& member) {
  member.delivery.phase = DeliveryPhase::kAccepted;
  if (in_round(member) && phase_ == CoordinatorPhase::kAnnouncing)
    advance_round();
  else
    stage(member);
}

void Coordinator::on_refuse(Member& member, const control::Refuse& refuse) {
  if (refuse.layout_unknown) {
    on_layout_unknown(member);
    return;
  }
  if (in_round(member))
    round_->problems.insert(round_->problems.end(), refuse.problems.begin(), refuse.problems.end());
  delivery_failed(member,
                  fmt::format("it refuses {}: {}", refuse.version.to_string(), refuse.reason));
}

void Coordinator::on_layout_unknown(Member& member) {
  const PublishRequested* publish = snapshot_of(member.delivery.version);
  if (publish == nullptr || member.delivery.attempts > 0) {
    delivery_failed(member, "it does not take the layout that was sent");
    return;
  }
  member.layout = {};
  announce(member, *publish);
  member.delivery.attempts = 1;  // a second refusal of this kind is a failure
}

// ---- staging ----

std::string Coordinator::chain_source(const Member& member) const {
  std::string source = context_.options.data_address;
  if (!in_round(member)) return source;
  for (const std::string& name : round_->members) {
    if (name == member.name) break;
    const Member& before = context_.roster.members().at(name);
    const bool relays = before.delivery.phase == DeliveryPhase::kStaging ||
                        before.delivery.phase == DeliveryPhase::kStaged;
    if (before.joined && relays && before.delivery.transport == control::TransportKind::kTcp &&
        !before.data_address.empty())
      source = before.data_address;
  }
  return source;
}

void Coordinator::stage(Member& member) {
  Delivery& delivery = member.delivery;
  const bool same_host = !member.boot_id.empty() && member.boot_id == context_.options.boot_id;
  const bool memfd = context_.options.transport == TransportPolicy::kMemfd ||
                     (context_.options.transport == TransportPolicy::kAuto && same_host &&
                      member.handover_failure.empty());
  delivery.transport = memfd ? control::TransportKind::kMemfd : control::TransportKind::kTcp;
  member.report.transport = delivery.transport;
  delivery.source = memfd ? context_.options.host_socket : chain_source(member);
  if (delivery.source.empty()) {
    delivery_failed(member, memfd ? "this coordinator serves no host socket"
                                  : "it is not on this host, and no data_address is configured");
    return;
  }
  if (++delivery.attempts > kStageAttempts) {
    delivery_failed(member, fmt::format("its source was lost {} times", kStageAttempts));
    return;
  }
  delivery.phase = DeliveryPhase::kStaging;
  delivery.deadline = context_.now + context_.options.stage;
  context_.send(
      member,
      control::Stage{
          .version = delivery.version, .transport = delivery.transport, .source = delivery.source},
      delivery.round);
}

void Coordinator::bridge(const Member& lost) {
  if (!round_ || lost.data_address.empty()) return;
  const std::vector<std::string> names = round_->members;
  for (const std::string& name : names) {
    Member& member = context_.roster.add(name);
    if (member.delivery.phase == DeliveryPhase::kStaging &&
        member.delivery.transport == control::TransportKind::kTcp &&
        member.delivery.source == lost.data_address)
      stage(member);
  }
}

void Coordinator::on_staged(Member& member, const control::Staged& staged) {
  if (!staged.failure.empty()) {
    staging_failed(member, staged);
    return;
  }
  const PublishRequested* publish = snapshot_of(staged.version);
  if (publish != nullptr && publish->content_digest != staged.content_digest &&
      !planted("staged_digest_not_compared")) {
    delivery_failed(member, fmt::format("it holds other bytes: content digest {}, expected {}",
                                        staged.content_digest.to_string(),
                                        publish->content_digest.to_string()));
    return;
  }
  member.delivery.phase = DeliveryPhase::kStaged;
  if (!member.holds(staged.version)) member.report.staged.push_back(staged.version);
  if (in_round(member) && phase_ != CoordinatorPhase::kSwitching) {
    advance_round();
  } else if (staged.version == record().target) {
    send_decide(context_, record(), member);
  }
}

// The same boot id promises less than a hand-over needs: a path that both see, one user,
// descriptors that pass. Where it fails and nothing else is demanded, the bytes go by TCP. (A
// sidecar without a data address takes none by TCP.)
void Coordinator::staging_failed(Member& member, const control::Staged& staged) {
  if (member.delivery.transport == control::TransportKind::kMemfd &&
      context_.options.transport == TransportPolicy::kAuto &&
      !context_.options.data_address.empty() && !member.data_address.empty()) {
    member.handover_failure = staged.failure;
    const PublishRequested* publish = snapshot_of(member.delivery.version);
    if (staged.source_lost)
      stage(member);
    else if (publish != nullptr)
      announce(member, *publish);  // the sidecar has given the version up: it is offered anew
    else
      delivery_failed(member, "staging failed: " + staged.failure);
    return;
  }
  if (staged.source_lost) return stage(member);
  const std::string before = member.handover_failure.empty()
                                 ? std::string()
                                 : " (the hand-over by memfd: " + member.handover_failure + ")";
  delivery_failed(member, "staging failed: " + staged.failure + before);
}

void Coordinator::delivery_failed(Member& member, const std::string& why) {
  member.delivery.phase = DeliveryPhase::kFailed;
  member.delivery.failure = why;
  member.delivery.deadline = context_.now + kCatchUpRetry;
  if (!in_round(member) || round_->is_rollback) return;
  if (phase_ != CoordinatorPhase::kSwitching && context_.options.commit.rule == CommitRule::kAll) {
    abort_round(fmt::format("sidecar '{}': {}", member.name, why));
    return;
  }
  if (phase_ != CoordinatorPhase::kSwitching) leave_round(member);
  bridge(member);
  advance_round();
}

void Coordinator::catch_up(Member& member) {
  if (!member.joined || record().target.none() || in_round(member) || log_.is_storing() || ending_)
    return;
  if (member.delivery.phase != DeliveryPhase::kNone &&
      member.delivery.phase != DeliveryPhase::kStaged)
    return;
  if (announce_target(member)) return;
  // Without our copy it still has to learn what the target is and what was withdrawn.
  if (member.decided < record().number && member.asked < record().number)
    send_decide(context_, record(), member);
}

// False when it holds the target, or there is no copy here to give.
bool Coordinator::announce_target(Member& member) {
  const PublishRequested* publish =
      member.holds(record().target) ? nullptr : snapshot_of(record().target);
  if (publish == nullptr) return false;
  announce(member, *publish);
  return true;
}

}  // namespace wsync::publish
