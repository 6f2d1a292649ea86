#include "trainer_side/coordinator/copy_source.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/transport_choice.h"

namespace wsync::coordinator {
namespace {

// For this long a sidecar is not used that has refused for the first time, because it may be making
// its copy complete. Each time after that it is twice as long.
constexpr std::chrono::milliseconds kAvoided{1'000};
constexpr std::chrono::milliseconds kAvoidedMax{60'000};

// Whether its relay offers the version without being asked: it has come as a copy, or is coming.
bool relays_by_itself(const Member& source, const Version& version, std::uint64_t round) {
  if (!source.delivery.relays() || source.delivery.version() != version) return false;
  if (source.delivery.state() == DeliveryState::kStaged) return source.holds(version);
  return source.delivery.round() < round || planted("late_sidecars_wait_for_each_other");
}

// The address at which the member may fetch from the source, by the kind that the source prefers.
const control::TransportAddress* address_for(const CoordinatorContext& context,
                                             const Member& member, const Member& source) {
  for (const control::TransportAddress& served : source.transports)
    if (!served.address.empty() &&
        control::find_transport(member.transports, served.kind) != nullptr &&
        may_fetch(context.options, member, source.boot_id, served))
      return &served;
  return nullptr;
}

}  // namespace

std::optional<CopySource> find_copy(const CoordinatorContext& context, const Member& member,
                                    const Version& version, std::uint64_t round) {
  const Roster::Members& members = context.roster.members();
  // Sidecars of two hosts may have one address on loopback. Then both count as more loaded.
  std::unordered_map<std::string, std::uint32_t> readers;
  for (const auto& [name, other] : members)
    if (other.delivery.state() == DeliveryState::kStaging && name != member.name)
      ++readers[other.delivery.source().address];

  using Cost = std::tuple<bool, bool, bool, std::uint32_t, std::uint64_t>;
  std::optional<Cost> least;
  std::optional<CopySource> best;
  std::uint64_t place = 0;
  for (const auto& [name, source] : members) {
    ++place;
    const CopyRelay& relay = source.copy_relay;
    if (!source.joined || name == member.name) continue;
    if (relay.state == CopyRelayState::kRefused && context.now < relay.until) continue;
    const bool by_itself = relays_by_itself(source, version, round);
    const bool is_asked = relay.state == CopyRelayState::kAsked && relay.version == version;
    const bool is_ready =
        by_itself || (relay.state == CopyRelayState::kReady && relay.version == version);
    if (!by_itself &&
        !(source.holds(version) && contains(source.capabilities, control::Capability::kRelaysHeld)))
      continue;
    const bool is_silent = !is_ready && is_asked && context.now >= relay.until;
    for (const control::TransportAddress& served : source.transports) {
      const auto busy = readers.find(served.address);
      const bool has_failed = served == member.failed_copy || member.delivery.has_lost(served);
      const Cost cost{has_failed, is_silent, !is_same_host(member.boot_id, source.boot_id),
                      busy == readers.end() ? 0 : busy->second, (place + round) % members.size()};
      if (served.address.empty() || (least && *least <= cost)) continue;
      const control::TransportAddress* address = address_for(context, member, source);
      if (address == nullptr || *address != served) continue;
      least = cost;
      best = {.sidecar = name, .address = *address, .is_ready = is_ready, .has_failed = has_failed};
    }
  }
  return best;
}

void ask_for_relay(CoordinatorContext& context, const std::string& sidecar, const Version& version,
                   bool with_layout) {
  Member& member = context.roster.add(sidecar);
  CopyRelay& relay = member.copy_relay;
  if (relay.state == CopyRelayState::kAsked && relay.version == version &&
      context.now < relay.until)
    return;
  relay.state = CopyRelayState::kAsked;
  relay.version = version;
  relay.until = context.now + context.options.announce;
  context.send(member, control::RelayVersion{.version = version, .with_layout = with_layout}, 0);
}

void ask_about(CoordinatorContext& context, const Version& version) {
  const Member* silent = nullptr;
  for (const auto& [name, member] : context.roster.members()) {
    const CopyRelay& relay = member.copy_relay;
    if (!member.joined || !member.holds(version) ||
        !contains(member.capabilities, control::Capability::kRelaysHeld))
      continue;
    const bool is_awaited = context.now < relay.until;
    if (relay.state == CopyRelayState::kAsked && relay.version == version && is_awaited) return;
    if (relay.state == CopyRelayState::kRefused && is_awaited) continue;
    if (relay.state == CopyRelayState::kAsked && relay.version == version) {
      silent = &member;
      continue;
    }
    return ask_for_relay(context, name, version, true);
  }
  if (silent != nullptr) ask_for_relay(context, silent->name, version, true);
}

Result<bool> note_relay(const CoordinatorContext& context, Member& member,
                        const control::RelayReady& ready, const Digest& content) {
  CopyRelay& relay = member.copy_relay;
  if (relay.state != CopyRelayState::kAsked || relay.version != ready.version) return false;
  const bool is_other = ready.failure.empty() && content != Digest{} &&
                        ready.content_digest != content && !planted("relayed_digest_not_compared");
  if (ready.failure.empty() && !is_other) {
    relay.state = CopyRelayState::kReady;
    relay.pause = {};
    return true;
  }
  relay.state = CopyRelayState::kRefused;
  relay.pause = relay.pause.count() == 0 ? kAvoided : std::min(2 * relay.pause, kAvoidedMax);
  // Other bytes do not become those of the version: until its next Hello.
  constexpr std::chrono::hours kForEver{24 * 365};
  relay.until = context.now + (is_other ? std::chrono::milliseconds(kForEver) : relay.pause);
  if (!is_other) return true;
  return fail(ErrorCode::kDigestMismatch,
              fmt::format("sidecar '{}' holds {} with the content digest {}, expected {}, so no "
                          "other sidecar gets it from there",
                          member.name, ready.version.to_string(), ready.content_digest.to_string(),
                          content.to_string()));
}

PublishRequested described_by(const control::RelayReady& ready) {
  return {.version = ready.version,
          .layout_digest = ready.layout_digest,
          .content_digest = ready.content_digest,
          .layout = ready.layout,
          .bucket_bytes = ready.bucket_bytes,
          .arena_bytes = ready.arena_bytes,
          .parts = ready.parts};
}

void note_failed_copy(CoordinatorContext& context, Member& member, bool source_lost) {
  const control::TransportAddress source = member.delivery.source();
  if (!source_lost) {
    member.failed_copy = source;
    return;
  }
  std::vector<std::string> names;
  for (const auto& [name, other] : context.roster.members())
    if (other.copy_relay.state == CopyRelayState::kReady &&
        std::ranges::find(other.transports, source) != other.transports.end())
      names.push_back(name);
  for (const std::string& name : names) context.roster.add(name).copy_relay = {};
}

}  // namespace wsync::coordinator
