// Roster: what the coordinator knows about each sidecar. Pure data; no I/O. Thread: confined to one
// thread.
//
// A message concerns one sidecar, and handling it must cost the same for any number of sidecars. So
// the roster has indexes in place of searches, and notes which members may have changed: each
// function that returns a member to be changed notes it, and clear_changes() ends the event. Until
// then the caller may change the member, and the indexes follow. UpdateRound and RoundScheduler
// count the changed members again, and no others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "shared/transport/pair_key.h"
#include "trainer_side/coordinator/coordinator_record.h"
#include "trainer_side/coordinator/delivery.h"

namespace wsync::coordinator {

// A kind of transport that has failed for a sidecar.
struct TransportFailure {
  std::string why;
  // True: the kind is not used. False: it may be tried again with the next version.
  bool avoided = true;
  TimePoint again{};                   // when it may be tried again
  std::chrono::milliseconds pause{0};  // until then; doubles with each failure
};

// Whether a sidecar passes on a version that it holds (copy_source.h).
enum class CopyRelayState : std::uint8_t {
  kNone,     // it has not been asked
  kAsked,    // its answer is awaited until `until`
  kReady,    // others may fetch from it
  kRefused,  // it is not used until `until`
};
struct CopyRelay {
  CopyRelayState state = CopyRelayState::kNone;
  Version version;
  TimePoint until{};
  std::chrono::milliseconds pause{0};  // of the last refusal
};

// One sidecar, identified by its name. It stays in the roster when it is lost, or leaves while
// an engine is attached to it, until it is forgotten (forget_rules.h). It is removed at once when
// it leaves without engines.
struct Member {
  std::string name;
  std::string peer;       // address on the control port; changes with each of its processes
  std::string last_peer;  // the same, kept after a loss
  TimePoint welcomed{};   // when the last Welcome was sent
  bool joined = false;    // its Hello under this fence has arrived, and it is not lost
  bool has_left =
      false;         // it left without engines, or is forgotten; kept until its round has ended
  TimePoint lost{};  // when its last connection ended
  // It has stored a decision under this fence, and has reported its copies since. Before that, its
  // copies that are newer than the target in its Hello may never have been decided.
  bool released_undecided = false;
  Version target_at_hello;
  // It has stored every version that the record names as withdrawn (owes_withdrawal).
  bool knows_withdrawn = false;
  std::string boot_id;
  std::uint64_t pid_namespace = 0;
  control::Capabilities capabilities = 0;  // of this release, those that its process has named
  std::vector<control::TransportAddress> transports;  // of its last Hello
  std::optional<transport::PairSecret> relay_secret;  // the same
  Digest layout;                                      // digest of the layout that the sidecar knows
  control::FleetId fleet;      // as it reported; none: it belongs to no fleet yet
  control::Decision decision;  // newest decision that it has stored
  control::Decision origin;    // of its stored target
  Digest target_content;       // of its stored target
  bool told_conflict = false;  // operators know that it holds other content
  Delivery delivery;
  CopyRelay copy_relay;  // void with its process, and with the fence
  // Which sidecar was asked to pass on what this one is to receive; empty: it waits for none.
  std::string copy_from;
  // Its next Hello will answer a Welcome that was sent although nothing was lost.
  bool was_only_welcomed = false;
  // The last source from which a version could not be staged outside of a round.
  control::TransportAddress failed_copy;
  // Kinds of transport that have failed for this process. Until their time has come, they are used
  // only if no other is left.
  std::map<std::string, TransportFailure> failed_transports;
  // The older decision that this sidecar follows until its version is staged and switched to
  // (SlowMembers); null: it follows the newest one.
  std::shared_ptr<const CoordinatorRecord> finishes;
  std::uint64_t decided = 0;               // number of the decision that it has stored
  std::uint64_t asked = 0;                 // number of the decision last sent
  TimePoint ask_again{};                   // when that is sent again
  std::chrono::milliseconds ask_pause{0};  // the last wait before a repetition
  std::uint64_t switched = 0;              // number of the decision whose outcomes it has reported
  std::string refused;                     // why it refused the last sent decision
  std::vector<control::ReplicaOutcome> outcomes;  // of `switched`
  // Replicas whose outcomes were lost with the sidecar's last process, which had begun the switch.
  // They count when its heartbeats report that they serve the target.
  std::vector<std::string> unreported;
  // Replicas to which requests could be routed when the newest decision was made.
  std::vector<std::string> ready_at_decision;
  std::uint64_t heartbeats = 0;        // number of the newest one of its process
  std::uint64_t staged_bytes = 0;      // progress of its delivery, from its heartbeats
  std::uint32_t patch_value_cost = 0;  // from its heartbeats; 0: it takes no patches
  bool lends_arenas = false;           // from its heartbeats
  control::SidecarReport report;
  std::uint32_t turns = 0;       // as its last heartbeat reports them (control::Turns)
  std::uint32_t turns_sent = 0;  // as it was last sent, or as a later heartbeat reports them
  // When RoundScheduler next has something to do for this sidecar. Changed by RoundScheduler only.
  std::optional<TimePoint> wake;
  // What the indexes of the roster contain of this member. Changed by Roster only.
  struct Indexed {
    std::string peer;
    std::string last_peer;
    bool joined = false;
    bool has_left = false;
  } indexed;

  [[nodiscard]] bool holds(const Version& version) const;
  // Its connection or process is gone, so its delivery is dropped.
  void forget_delivery();
};

class Roster {
 public:
  using Members = std::map<std::string, Member>;

  // ---- changes: each function notes the members that it returns ----

  // Returns the member of that name; creates it if it is new.
  Member& add(const std::string& name);
  [[nodiscard]] Member* by_peer(const std::string& peer);
  // Also finds a lost member, by its last address.
  [[nodiscard]] Member* by_last_peer(const std::string& peer);
  // All members, each of which may be changed.
  [[nodiscard]] Members& change_all() noexcept;
  // Removes the members that have left or are forgotten, except those for which `is_needed` is
  // true.
  template <class Predicate>
  void forget_left(Predicate is_needed) {
    update();
    for (auto name = left_.begin(); name != left_.end();) {
      const auto member = members_.find(*name++);
      if (!is_needed(member->second)) remove(member);
    }
  }

  // ---- what has changed since the last clear_changes() ----

  // If all members may have changed, changed() is void.
  [[nodiscard]] bool all_changed() const noexcept { return all_changed_; }
  [[nodiscard]] const std::vector<Member*>& changed() const noexcept { return changed_; }
  void clear_changes();

  // ---- views ----

  [[nodiscard]] const Members& members() const noexcept {
    visits_ += members_.size();
    return members_;
  }
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }
  // Return null if there is no such member.
  [[nodiscard]] const Member* find(const std::string& name) const;
  [[nodiscard]] const Member* find_peer(const std::string& peer) const;
  [[nodiscard]] std::size_t joined_count() const;
  // The least cost of a value of those joined sidecars that take patches; 0 if there is none.
  [[nodiscard]] std::uint32_t patch_value_cost() const;
  // The newest version older than `target` that every joined sidecar holds and for which
  // `may_serve` is true.
  [[nodiscard]] std::optional<Version> rollback_target(
      const Version& target, const std::function<bool(const Version&)>& may_serve) const;
  // How many members were looked at so far; a look at all of them counts as many.
  [[nodiscard]] std::uint64_t visits() const noexcept { return visits_; }
  // Builds the indexes again and compares. Returns kInternal with the first difference.
  [[nodiscard]] Result<> invariants() const;

 private:
  using Address = std::pair<std::string, std::string>;  // of a peer, and the name of its member

  Member& note(Member& member);
  void remove(Members::iterator member);
  // Brings the indexes up to date with the changed members.
  void update() const;
  void index(Member& member) const;
  [[nodiscard]] Member* found(const std::set<Address>& peers, const std::string& peer) const;

  // Mutable, because what a view needs of the indexes is brought up to date on demand.
  mutable Members members_;
  mutable std::set<Address> peers_;
  mutable std::set<Address> last_peers_;
  mutable std::set<std::string> left_;
  mutable std::size_t joined_ = 0;
  mutable std::uint64_t visits_ = 0;
  std::vector<Member*> changed_;
  bool all_changed_ = false;
};

[[nodiscard]] bool contains(const std::vector<Version>& versions, const Version& version) noexcept;
// Number of replicas of a sidecar with every rank attached.
[[nodiscard]] std::uint32_t whole_replicas(const Member& member) noexcept;
// Of these, the number of those with this name.
[[nodiscard]] std::uint32_t whole_replicas(const Member& member, std::string_view name) noexcept;
// Number of replicas of a sidecar with at least one rank attached.
[[nodiscard]] std::uint32_t attached_replicas(const Member& member) noexcept;

}  // namespace wsync::coordinator
