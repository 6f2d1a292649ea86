#include "trainer_side/coordinator/roster.h"

#include <algorithm>

namespace wsync::coordinator {

bool contains(const std::vector<Version>& versions, const Version& version) noexcept {
  return std::find(versions.begin(), versions.end(), version) != versions.end();
}

bool Member::holds(const Version& version) const { return contains(report.staged, version); }

void Member::forget_delivery() {
  joined = false;
  delivery.forget();
  staged_bytes = 0;
}

std::uint32_t whole_replicas(const Member& member) noexcept {
  return static_cast<std::uint32_t>(std::count_if(
      member.report.replicas.begin(), member.report.replicas.end(),
      [](const control::ReplicaReport& r) { return r.ranks_attached == r.world_size; }));
}

Member& Roster::add(const std::string& name) {
  Member& member = members_[name];
  member.name = name;
  member.report.name = name;
  return member;
}

Member* Roster::by_peer(const std::string& peer) {
  for (auto& [name, member] : members_)
    if (member.peer == peer) return &member;
  return nullptr;
}

Member* Roster::by_last_peer(const std::string& peer) {
  for (auto& [name, member] : members_)
    if (member.last_peer == peer) return &member;
  return nullptr;
}

std::size_t Roster::joined_count() const noexcept {
  return static_cast<std::size_t>(std::count_if(
      members_.begin(), members_.end(), [](const auto& entry) { return entry.second.joined; }));
}

std::optional<Version> Roster::rollback_target(const Version& target,
                                               const std::vector<Version>& withdrawn) const {
  std::optional<Version> best;
  for (const auto& [first_name, first] : members_) {
    if (!first.joined) continue;
    for (const Version& version : first.report.staged) {
      if (version >= target || contains(withdrawn, version) || (best && *best >= version)) continue;
      const bool everywhere = std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
        return !entry.second.joined || entry.second.holds(version);
      });
      if (everywhere) best = version;
    }
    break;  // a version that the first sidecar lacks is not on all sidecars
  }
  return best;
}

}  // namespace wsync::coordinator
