#include "trainer_side/coordinator/roster.h"

#include <algorithm>

#include "shared/base/format.h"

namespace wsync::coordinator {

bool contains(const std::vector<Version>& versions, const Version& version) noexcept {
  return std::find(versions.begin(), versions.end(), version) != versions.end();
}

bool Member::holds(const Version& version) const { return contains(report.staged, version); }

void Member::forget_delivery() {
  joined = false;
  delivery.forget();
  copy_from.clear();
  was_only_welcomed = false;
  finishes.reset();
  staged_bytes = 0;
}

std::uint32_t whole_replicas(const Member& member) noexcept {
  return static_cast<std::uint32_t>(std::count_if(
      member.report.replicas.begin(), member.report.replicas.end(),
      [](const control::ReplicaReport& r) { return r.ranks_attached == r.world_size; }));
}

std::uint32_t whole_replicas(const Member& member, std::string_view name) noexcept {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(member.report.replicas, [name](const control::ReplicaReport& replica) {
        return replica.replica == name && replica.ranks_attached == replica.world_size;
      }));
}

std::uint32_t attached_replicas(const Member& member) noexcept {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      member.report.replicas,
      [](const control::ReplicaReport& replica) { return replica.ranks_attached > 0; }));
}

// ---- changes ----

Member& Roster::note(Member& member) {
  ++visits_;
  if (changed_.empty() || changed_.back() != &member) changed_.push_back(&member);
  return member;
}

Member& Roster::add(const std::string& name) {
  Member& member = members_[name];
  member.name = name;
  member.report.name = name;
  return note(member);
}

Member* Roster::found(const std::set<Address>& peers, const std::string& peer) const {
  update();
  const auto address = peers.lower_bound({peer, std::string()});
  if (address == peers.end() || address->first != peer) return nullptr;
  return &members_.at(address->second);
}

Member* Roster::by_peer(const std::string& peer) {
  Member* member = found(peers_, peer);
  return member == nullptr ? nullptr : &note(*member);
}

Member* Roster::by_last_peer(const std::string& peer) {
  Member* member = found(last_peers_, peer);
  return member == nullptr ? nullptr : &note(*member);
}

Roster::Members& Roster::change_all() noexcept {
  visits_ += members_.size();
  all_changed_ = true;
  return members_;
}

void Roster::remove(Members::iterator member) {
  Member& gone = member->second;
  gone.peer.clear();
  gone.last_peer.clear();
  gone.joined = gone.has_left = false;
  index(gone);
  std::erase(changed_, &gone);
  members_.erase(member);
}

void Roster::clear_changes() {
  update();
  changed_.clear();
  all_changed_ = false;
}

// ---- the indexes ----

void Roster::update() const {
  if (all_changed_)
    for (auto& [name, member] : members_) index(member);
  else
    for (Member* member : changed_) index(*member);
}

void Roster::index(Member& member) const {
  ++visits_;
  Member::Indexed& indexed = member.indexed;
  const auto follow = [&](std::set<Address>& peers, std::string& from, const std::string& to) {
    if (from == to) return;
    if (!from.empty()) peers.erase({from, member.name});
    if (!to.empty()) peers.insert({to, member.name});
    from = to;
  };
  follow(peers_, indexed.peer, member.peer);
  follow(last_peers_, indexed.last_peer, member.last_peer);
  if (std::exchange(indexed.joined, member.joined) != member.joined)
    member.joined ? ++joined_ : --joined_;
  if (std::exchange(indexed.has_left, member.has_left) == member.has_left) return;
  if (member.has_left)
    left_.insert(member.name);
  else
    left_.erase(member.name);
}

// ---- views ----

const Member* Roster::find(const std::string& name) const {
  ++visits_;
  const auto member = members_.find(name);
  return member == members_.end() ? nullptr : &member->second;
}

const Member* Roster::find_peer(const std::string& peer) const {
  ++visits_;
  return found(peers_, peer);
}

std::uint32_t Roster::patch_value_cost() const {
  std::uint32_t least = 0;
  for (const auto& [name, member] : members())
    if (member.joined && member.patch_value_cost != 0)
      least = least == 0 ? member.patch_value_cost : std::min(least, member.patch_value_cost);
  return least;
}

std::size_t Roster::joined_count() const {
  update();
  return joined_;
}

Result<> Roster::invariants() const {
  update();
  Roster again;
  for (const auto& [name, member] : members_) {
    Member& copy = again.add(name);
    copy.peer = member.peer;
    copy.last_peer = member.last_peer;
    copy.joined = member.joined;
    copy.has_left = member.has_left;
  }
  again.update();
  if (again.peers_ == peers_ && again.last_peers_ == last_peers_ && again.left_ == left_ &&
      again.joined_ == joined_)
    return {};
  return fail(
      ErrorCode::kInternal,
      fmt::format("the indexes of the roster contain {} connected and {} joined sidecars of "
                  "{}, but {} and {} are",
                  peers_.size(), joined_, members_.size(), again.peers_.size(), again.joined_));
}

std::optional<Version> Roster::rollback_target(
    const Version& target, const std::function<bool(const Version&)>& may_serve) const {
  std::optional<Version> best;
  for (const auto& [first_name, first] : members_) {
    if (!first.joined) continue;
    for (const Version& version : first.report.staged) {
      if (version >= target || (best && *best >= version)) continue;
      const bool everywhere = std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
        return !entry.second.joined || entry.second.holds(version);
      });
      if (everywhere && may_serve(version)) best = version;
    }
    break;  // a version that the first sidecar lacks is not on all sidecars
  }
  return best;
}

}  // namespace wsync::coordinator
