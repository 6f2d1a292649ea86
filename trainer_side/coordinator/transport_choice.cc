#include "trainer_side/coordinator/transport_choice.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/tcp_address.h"
#include "shared/transport/traits.h"

namespace wsync::coordinator {
namespace {

constexpr std::chrono::milliseconds kTryAgain{10'000};
constexpr std::chrono::milliseconds kTryAgainMax{3'600'000};

bool copies(const control::TransportAddress& served) {
  const transport::TransportTraits* traits = transport::find_transport_kind(served.kind);
  return traits != nullptr && !traits->maps_source;
}

// The kinds that can reach the sidecar, preferred first.
std::vector<const control::TransportAddress*> usable(const CoordinatorOptions& options,
                                                     const Member& member, bool copies_only) {
  std::vector<const control::TransportAddress*> found;
  for (const control::TransportAddress& served : options.transports) {
    if (control::find_transport(member.transports, served.kind) == nullptr) continue;
    if (copies_only && !copies(served)) continue;
    if (may_fetch(options, member, options.boot_id, served)) found.push_back(&served);
  }
  return found;
}

// The secret of which the key at a source is made, or null. Relays are looked for from the member
// backwards, because a chain is in the order of the names.
const transport::PairSecret* secret_of(const CoordinatorContext& context, const Member& member,
                                       const control::TransportAddress& source) {
  const auto serves = [&](const std::vector<control::TransportAddress>& transports) {
    return std::ranges::find(transports, source) != transports.end();
  };
  const CoordinatorOptions& options = context.options;
  if (serves(options.transports) || planted("relay_key_of_the_trainer"))
    return options.secret ? &*options.secret : nullptr;
  // Sidecars of two hosts may have the same address on loopback.
  const auto is_source = [&](const Member& other) {
    return other.joined && other.relay_secret && serves(other.transports) &&
           may_fetch(options, member, other.boot_id, source);
  };
  const Roster::Members& members = context.roster.members();
  const auto own = members.lower_bound(member.name);
  for (auto before = std::make_reverse_iterator(own); before != members.rend(); ++before)
    if (is_source(before->second)) return &*before->second.relay_secret;
  for (auto after = own; after != members.end(); ++after)
    if (is_source(after->second)) return &*after->second.relay_secret;
  return nullptr;
}

// The key of the member at a source with this secret; empty for a kind without keys.
Bytes pair_key(const CoordinatorContext& context, const Member& member, const std::string& kind,
               const transport::PairSecret& secret) {
  const transport::TransportTraits* traits = transport::find_transport_kind(kind);
  if (traits == nullptr || !traits->has_keys) return {};
  const transport::PairKey key = transport::derive_pair_key(
      secret, {.fence = {.epoch = context.fence.epoch, .run_id = context.fence.run_id},
               .receiver = member.name});
  return {key.secret.begin(), key.secret.end()};
}

bool is_avoided(const Member& member, const std::string& kind) {
  const auto failure = member.failed_transports.find(kind);
  return failure != member.failed_transports.end() && failure->second.avoided;
}

std::string kinds_of(const std::vector<control::TransportAddress>& transports) {
  std::string kinds;
  for (const control::TransportAddress& each : transports)
    kinds += (kinds.empty() ? "" : ", ") + each.kind;
  return kinds.empty() ? "none" : kinds;
}

// Where the trainer serves by the last kind that reaches the network, or "none".
std::string network_address(const CoordinatorOptions& options) {
  std::string address = "none";
  for (const control::TransportAddress& served : options.transports)
    if (const auto* traits = transport::find_transport_kind(served.kind);
        traits != nullptr && traits->reach == transport::Reach::kNetwork)
      address = served.address;
  return address;
}

std::string why_none(const CoordinatorOptions& options, const Member& member) {
  if (options.transports.empty())
    return "no trainer is connected, so there is nobody to receive from";
  std::string text = fmt::format(
      "the trainer and the sidecar have no transport in common: the trainer serves {}, the sidecar "
      "accepts {}",
      kinds_of(options.transports), kinds_of(member.transports));
  for (const control::TransportAddress& served : options.transports)
    if (control::find_transport(member.transports, served.kind) != nullptr)
      text += fmt::format("; {} does not reach another host", served.kind);
  if (options.serves_other_hosts)
    return text + fmt::format(
                      "; both need `transport: auto`, the same `data_security`, and the "
                      "trainer a `data_address` that other hosts reach (now {})",
                      network_address(options));
  return text + "; set `transport: auto` in both configurations";
}

}  // namespace

bool is_same_host(const std::string& boot_id, const std::string& other) {
  return !boot_id.empty() && boot_id == other;
}

bool may_fetch(const CoordinatorOptions& options, const Member& member, const std::string& boot_id,
               const control::TransportAddress& source) {
  const transport::TransportTraits* traits = transport::find_transport_kind(source.kind);
  if (traits == nullptr) return false;
  if (is_same_host(member.boot_id, boot_id)) return true;
  if (traits->reach == transport::Reach::kHost) return options.one_transport;
  // All are on one host, or in containers of one.
  if (!options.serves_other_hosts) return true;
  const bool is_protected = traits->has_keys || options.security == DataSecurity::kTrustedNetwork ||
                            planted("plain_data_to_other_hosts");
  const auto address = parse_tcp_address(source.address);
  return is_protected && address && !address->is_loopback();
}

Bytes pair_key_of(const CoordinatorContext& context, const Member& member,
                  const control::TransportAddress& source) {
  const transport::PairSecret* secret = secret_of(context, member, source);
  return secret == nullptr ? Bytes() : pair_key(context, member, source.kind, *secret);
}

Result<std::vector<control::PartSource>> choose_part_sources(const CoordinatorContext& context,
                                                             const Member& member,
                                                             const std::vector<PartOwner>& owners) {
  std::vector<control::PartSource> sources;
  for (const PartOwner& owner : owners) {
    const control::TransportAddress* chosen = nullptr;
    for (const control::TransportAddress& served : owner.transports) {
      if (!copies(served) || control::find_transport(member.transports, served.kind) == nullptr ||
          !may_fetch(context.options, member, owner.boot_id, served))
        continue;
      if (chosen == nullptr ||
          (is_avoided(member, chosen->kind) && !is_avoided(member, served.kind)))
        chosen = &served;
    }
    if (chosen == nullptr)
      return fail(
          ErrorCode::kNotFound,
          fmt::format("no transport leads from it to {}, which serves a part of the version "
                      "by {}: set `transport: auto`, the same `data_security` and a "
                      "`data_address` that other hosts reach in the configuration of both",
                      owner.name, kinds_of(owner.transports)));
    sources.push_back({.transport = chosen->kind, .source = chosen->address, .key = {}});
    if (owner.secret) sources.back().key = pair_key(context, member, chosen->kind, *owner.secret);
  }
  return sources;
}

Result<control::TransportAddress> choose_transport(const CoordinatorOptions& options,
                                                   const Member& member, bool copies_only) {
  const auto candidates = usable(options, member, copies_only);
  if (candidates.empty() && copies_only && !usable(options, member, false).empty())
    return fail(
        ErrorCode::kNotFound,
        "the version has parts on several hosts, so it comes as a copy, but the sidecar and "
        "rank 0 have only a transport in common that maps memory: set `transport: auto` in "
        "both configurations");
  if (candidates.empty()) return fail(ErrorCode::kNotFound, why_none(options, member));
  for (const control::TransportAddress* candidate : candidates)
    if (!is_avoided(member, candidate->kind)) return *candidate;
  return *candidates.front();
}

std::string transport_problems(const CoordinatorOptions& options, const Roster& roster) {
  std::string problems;
  if (options.transports.empty()) return problems;
  for (const auto& [name, member] : roster.members())
    if (const auto chosen = choose_transport(options, member); member.joined && !chosen)
      problems += fmt::format("{}sidecar '{}': {}", problems.empty() ? "" : "; ", name,
                              chosen.error().message());
  return problems;
}

std::chrono::milliseconds note_failed_transport(Member& member, const std::string& kind,
                                                std::string why, TimePoint now) {
  TransportFailure& failure = member.failed_transports[kind];
  failure.pause =
      failure.pause.count() == 0 ? kTryAgain : std::min(2 * failure.pause, kTryAgainMax);
  failure.why = std::move(why);
  failure.avoided = true;
  failure.again = now + failure.pause;
  return failure.pause;
}

void retry_failed_transports(Member& member, TimePoint now) {
  if (planted("failed_transport_is_avoided_for_ever")) return;
  for (auto& [kind, failure] : member.failed_transports)
    if (now >= failure.again) failure.avoided = false;
}

bool note_good_transport(Member& member, const std::string& kind) {
  return member.failed_transports.erase(kind) > 0;
}

bool has_alternative(const CoordinatorOptions& options, const Member& member,
                     const std::string& kind, bool copies_only) {
  for (const control::TransportAddress* candidate : usable(options, member, copies_only))
    if (candidate->kind != kind && !is_avoided(member, candidate->kind)) return true;
  return false;
}

}  // namespace wsync::coordinator
