#include "trainer_side/coordinator/delivery.h"

#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::coordinator {
namespace {

constexpr std::uint32_t kStageAttempts = 8;

constexpr std::array<Transition<DeliveryState>, 18> kDeliveryTransitions = {{
    {DeliveryState::kNone, "a version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kAnnounced, "the layout is unknown there, or a newer version is offered",
     DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kAccepted, "a newer version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kStaging, "the hand-over by memfd failed, or a newer version is offered",
     DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kStaged, "a newer version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kFailed, "a newer version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kAnnounced, "Accept", DeliveryState::kAccepted, ""},
    {DeliveryState::kAccepted, "its round stages, or it is in no round", DeliveryState::kStaging,
     "Stage"},
    {DeliveryState::kStaging, "its source is lost", DeliveryState::kStaging,
     "Stage from another source"},
    {DeliveryState::kStaging, "Staged, with the expected digest", DeliveryState::kStaged, ""},
    {DeliveryState::kAnnounced, "Refuse, or the deadline passes", DeliveryState::kFailed,
     "leave or abort the round; try again later"},
    {DeliveryState::kAccepted, "it has no source", DeliveryState::kFailed,
     "leave or abort the round; try again later"},
    {DeliveryState::kStaging, "Staged with a failure or other bytes, or the deadline passes",
     DeliveryState::kFailed, "leave or abort the round; try again later"},
    {DeliveryState::kAnnounced, "the sidecar is lost, or its round is aborted",
     DeliveryState::kNone, ""},
    {DeliveryState::kAccepted, "the sidecar is lost, or its round is aborted", DeliveryState::kNone,
     ""},
    {DeliveryState::kStaging, "the sidecar is lost, or its round is aborted", DeliveryState::kNone,
     ""},
    {DeliveryState::kStaged, "the sidecar is lost, or its round is aborted", DeliveryState::kNone,
     ""},
    {DeliveryState::kFailed, "the sidecar is lost, or it is time to try again",
     DeliveryState::kNone, ""},
}};

}  // namespace

std::string_view delivery_state_name(DeliveryState state) noexcept {
  switch (state) {
    case DeliveryState::kNone:
      return "none";
    case DeliveryState::kAnnounced:
      return "announced";
    case DeliveryState::kAccepted:
      return "accepted";
    case DeliveryState::kStaging:
      return "staging";
    case DeliveryState::kStaged:
      return "staged";
    case DeliveryState::kFailed:
      return "failed";
  }
  return "unknown";
}

TransitionTable delivery_transitions() {
  return describe<DeliveryState>("Delivery", "One version on its way to one sidecar.",
                                 kDeliveryTransitions, delivery_state_name);
}

DeliverySource choose_source(const CoordinatorOptions& options, const std::string& boot_id,
                             bool handover_failed, const std::string& chain_source) {
  const bool same_host = !boot_id.empty() && boot_id == options.boot_id;
  const bool memfd = options.transport == TransportPolicy::kMemfd ||
                     (options.transport == TransportPolicy::kAuto && same_host && !handover_failed);
  if (memfd) return {.transport = control::TransportKind::kMemfd, .address = options.host_socket};
  return {.transport = control::TransportKind::kTcp, .address = chain_source};
}

void Delivery::move(DeliveryState to) {
  WSYNC_CHECK(allows<DeliveryState>(kDeliveryTransitions, state_, to),
              fmt::format("the delivery of {} cannot go from {} to {}", version_.to_string(),
                          delivery_state_name(state_), delivery_state_name(to)));
  state_ = to;
}

std::optional<TimePoint> Delivery::deadline() const {
  if (state_ == DeliveryState::kNone || state_ == DeliveryState::kStaged) return std::nullopt;
  return deadline_;
}

bool Delivery::is_under_way() const noexcept {
  return state_ == DeliveryState::kAnnounced || state_ == DeliveryState::kAccepted ||
         state_ == DeliveryState::kStaging;
}

bool Delivery::relays() const noexcept {
  return (state_ == DeliveryState::kStaging || state_ == DeliveryState::kStaged) &&
         source_.transport == control::TransportKind::kTcp;
}

bool Delivery::reads_from(const std::string& address) const {
  return state_ == DeliveryState::kStaging && source_.transport == control::TransportKind::kTcp &&
         source_.address == address;
}

bool Delivery::is_answer(std::uint64_t round, const Version& version, DeliveryState state) const {
  const bool same_round = round == round_ || planted("coordinator_ignores_round");
  return same_round && version == version_ && state == state_;
}

control::Announce Delivery::announce(const PublishRequested& publish, bool with_layout,
                                     std::uint64_t round, TimePoint deadline) {
  move(DeliveryState::kAnnounced);
  version_ = publish.version;
  round_ = round;
  source_ = {};
  attempts_ = 0;
  deadline_ = deadline;
  failure_.clear();
  return {.version = publish.version,
          .layout_digest = publish.layout_digest,
          .layout = with_layout ? publish.layout : Bytes{},
          .content_digest = publish.content_digest,
          .bucket_bytes = publish.bucket_bytes,
          .arena_bytes = publish.arena_bytes};
}

control::Announce Delivery::repeat(const PublishRequested& publish, std::uint64_t round,
                                   TimePoint deadline) {
  control::Announce message = announce(publish, publish.layout_digest != Digest{}, round, deadline);
  attempts_ = 1;
  return message;
}

void Delivery::accept() { move(DeliveryState::kAccepted); }

Result<control::Stage> Delivery::stage(const DeliverySource& source, TimePoint deadline) {
  source_ = source;
  if (source_.address.empty())
    return wsync::fail(ErrorCode::kNotFound,
                       source_.transport == control::TransportKind::kMemfd
                           ? "this coordinator serves no host socket"
                           : "it is not on this host, and no data_address is configured");
  // Limit the attempts, so that a chain whose links fail again and again ends.
  if (++attempts_ > kStageAttempts)
    return wsync::fail(ErrorCode::kPeerLost,
                       fmt::format("its source was lost {} times", kStageAttempts));
  move(DeliveryState::kStaging);
  deadline_ = deadline;
  return control::Stage{
      .version = version_, .transport = source_.transport, .source = source_.address};
}

void Delivery::complete() { move(DeliveryState::kStaged); }

void Delivery::fail(std::string why, TimePoint retry) {
  move(DeliveryState::kFailed);
  failure_ = std::move(why);
  deadline_ = retry;
}

void Delivery::forget() {
  if (state_ != DeliveryState::kNone) move(DeliveryState::kNone);
  *this = {};
}

Result<> Delivery::invariants() const {
  const auto broken = [this](std::string_view rule) {
    return wsync::fail(ErrorCode::kInternal,
                       fmt::format("the delivery of {} is {} {}", version_.to_string(),
                                   delivery_state_name(state_), rule));
  };
  if ((state_ == DeliveryState::kNone) != (round_ == 0)) return broken("and its round disagrees");
  if (state_ != DeliveryState::kFailed && !failure_.empty()) return broken("with a failure");
  if (state_ == DeliveryState::kStaging && source_.address.empty()) return broken("from nowhere");
  return {};
}

}  // namespace wsync::coordinator
