#include "trainer_side/coordinator/transport_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/transport/traits.h"

namespace wsync::coordinator {
namespace {

constexpr std::chrono::milliseconds kTryAgain{10'000};
constexpr std::chrono::milliseconds kTryAgainMax{3'600'000};

// The kinds that can reach the sidecar, preferred first.
std::vector<const control::TransportAddress*> usable(const CoordinatorOptions& options,
                                                     const Member& member) {
  std::vector<const control::TransportAddress*> found;
  for (const control::TransportAddress& served : options.transports) {
    if (control::find_transport(member.transports, served.kind) == nullptr) continue;
    const transport::TransportTraits* traits = transport::find_transport_kind(served.kind);
    const bool reaches = traits != nullptr &&
                         (traits->reach == transport::Reach::kNetwork || options.one_transport ||
                          is_same_host(member.boot_id, options.boot_id));
    if (reaches) found.push_back(&served);
  }
  return found;
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

std::string why_none(const CoordinatorOptions& options, const Member& member) {
  std::string text = fmt::format(
      "the trainer and the sidecar have no transport in common: the trainer serves {}, the sidecar "
      "accepts {}",
      kinds_of(options.transports), kinds_of(member.transports));
  for (const control::TransportAddress& served : options.transports)
    if (control::find_transport(member.transports, served.kind) != nullptr)
      text += fmt::format("; {} does not reach another host", served.kind);
  return text + "; set `transport: auto` in both configurations";
}

}  // namespace

bool is_same_host(const std::string& boot_id, const std::string& other) {
  return !boot_id.empty() && boot_id == other;
}

Result<control::TransportAddress> choose_transport(const CoordinatorOptions& options,
                                                   const Member& member) {
  const auto candidates = usable(options, member);
  if (candidates.empty()) return fail(ErrorCode::kNotFound, why_none(options, member));
  for (const control::TransportAddress* candidate : candidates)
    if (!is_avoided(member, candidate->kind)) return *candidate;
  return *candidates.front();
}

std::string transport_problems(const CoordinatorOptions& options, const Roster& roster) {
  std::string problems;
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
                     const std::string& kind) {
  for (const control::TransportAddress* candidate : usable(options, member))
    if (candidate->kind != kind && !is_avoided(member, candidate->kind)) return true;
  return false;
}

}  // namespace wsync::coordinator
