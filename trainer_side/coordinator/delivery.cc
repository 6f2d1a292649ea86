#include "trainer_side/coordinator/delivery.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/transport/traits.h"

namespace wsync::coordinator {
namespace {

constexpr std::uint32_t kStageAttempts = 8;

constexpr std::array<Transition<DeliveryState>, 19> kDeliveryTransitions = {{
    {DeliveryState::kNone, "a version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kAnnounced, "the layout is unknown there, or a newer version is offered",
     DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kAccepted, "a newer version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kStaging, "its kind of transport has failed, or a newer version is offered",
     DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kStaged, "a newer version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kFailed, "a newer version is offered", DeliveryState::kAnnounced, "Announce"},
    {DeliveryState::kAnnounced, "Accept", DeliveryState::kAccepted, ""},
    {DeliveryState::kAccepted,
     "its round stages, or it is in no round; its source may be read already",
     DeliveryState::kStaging, "Stage"},
    {DeliveryState::kStaging, "its source is lost", DeliveryState::kStaging,
     "Stage from another source"},
    {DeliveryState::kStaging, "the snapshot is complete", DeliveryState::kStaging,
     "Stage with the content digest"},
    {DeliveryState::kStaging, "Staged, with the expected digest", DeliveryState::kStaged, ""},
    {DeliveryState::kAnnounced, "Refuse, or the deadline passes", DeliveryState::kFailed,
     "leave or abort the round; try again later"},
    {DeliveryState::kAccepted, "no transport reaches it", DeliveryState::kFailed,
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
  if (state_ != DeliveryState::kStaging && state_ != DeliveryState::kStaged) return false;
  const transport::TransportTraits* kind = transport::find_transport_kind(source_.kind);
  return kind != nullptr && !kind->maps_source;
}

bool Delivery::reads_from(const std::vector<control::TransportAddress>& addresses) const {
  return state_ == DeliveryState::kStaging &&
         std::ranges::find(addresses, source_) != addresses.end();
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
  key_.clear();
  parts_.clear();
  attempts_ = 0;
  loss_.clear();
  lost_.clear();
  deadline_ = deadline;
  failure_.clear();
  return {.version = publish.version,
          .layout_digest = publish.layout_digest,
          .layout = with_layout ? publish.layout : SharedBytes{},
          .content_digest = publish.content_digest,
          .bucket_bytes = publish.bucket_bytes,
          .arena_bytes = publish.arena_bytes,
          .parts = publish.parts};
}

control::Announce Delivery::repeat(const PublishRequested& publish, std::uint64_t round,
                                   TimePoint deadline) {
  control::Announce message = announce(publish, publish.layout_digest != Digest{}, round, deadline);
  attempts_ = 1;
  return message;
}

void Delivery::accept() { move(DeliveryState::kAccepted); }

Result<control::Stage> Delivery::stage(const control::TransportAddress& source,
                                       const Digest& content, TimePoint deadline, Bytes key,
                                       std::vector<control::PartSource> parts) {
  source_ = source;
  key_ = std::move(key);
  parts_ = std::move(parts);
  // Limit the attempts, so that a chain whose links fail again and again ends.
  if (++attempts_ > kStageAttempts)
    return wsync::fail(ErrorCode::kPeerLost,
                       fmt::format("its source was lost {} times, the last time because: {}",
                                   kStageAttempts, loss_.empty() ? "it did not say why" : loss_));
  move(DeliveryState::kStaging);
  deadline_ = deadline;
  return stage_again(content);
}

control::Stage Delivery::stage_again(const Digest& content) const {
  WSYNC_CHECK(state_ == DeliveryState::kStaging, "only what is being read has a source");
  return {.version = version_,
          .transport = source_.kind,
          .source = source_.address,
          .content_digest = content,
          .key = key_,
          .parts = parts_};
}

void Delivery::lose_source(std::string why) {
  loss_ = std::move(why);
  if (!has_lost(source_)) lost_.push_back(source_);
}

bool Delivery::has_lost(const control::TransportAddress& source) const {
  return std::ranges::find(lost_, source) != lost_.end();
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
