#include "trainer_side/coordinator/snapshot_stream.h"

#include <algorithm>

#include "shared/transport/traits.h"
#include "trainer_side/coordinator/transport_choice.h"

namespace wsync::coordinator {

bool maps_source(const control::TransportAddress& source) {
  const transport::TransportTraits* kind = transport::find_transport_kind(source.kind);
  return kind != nullptr && kind->maps_source;
}

bool has_copying_member(const CoordinatorContext& context) {
  return std::ranges::any_of(context.roster.members(), [&](const auto& entry) {
    if (!entry.second.joined) return false;
    const auto chosen = choose_transport(context.options, entry.second);
    return chosen && !maps_source(*chosen);
  });
}

bool all_take_changes(const CoordinatorContext& context) {
  bool is_any = false;
  for (const auto& [name, member] : context.roster.members()) {
    if (!member.joined) continue;
    const auto chosen = choose_transport(context.options, member);
    if (chosen && maps_source(*chosen) && !member.lends_arenas) return false;
    is_any = is_any || chosen.has_value();
  }
  return is_any;
}

bool must_wait_for_snapshot(const PublishRequested* publish,
                            const control::TransportAddress& source) {
  return publish != nullptr && !publish->is_complete && maps_source(source);
}

void complete(PublishRequested& publish, const SnapshotEnded& snapshot) {
  publish.is_complete = true;
  publish.content_digest = snapshot.content_digest;
  publish.snapshot_ns = snapshot.snapshot_ns;
}

void send_content(CoordinatorContext& context, const Member& member,
                  const PublishRequested& publish) {
  context.send(member, member.delivery.stage_again(publish.content_digest),
               member.delivery.round());
}

bool may_lack_content(const Member& member, const control::Heartbeat& heartbeat,
                      const PublishRequested& publish) {
  return publish.is_complete && publish.was_streamed &&
         member.delivery.state() == DeliveryState::kStaging &&
         heartbeat.staged_bytes == member.staged_bytes;
}

}  // namespace wsync::coordinator
