// Roster: what the coordinator knows of each sidecar. Pure data; no I/O.
// Thread: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/delivery.h"

namespace wsync::coordinator {

// One sidecar, known by its name. It stays known when it is lost, and is forgotten when it leaves.
struct Member {
  std::string name;
  std::string peer;       // address on the control port; changes with each of its processes
  std::string last_peer;  // the same, kept when it is lost
  TimePoint welcomed{};   // when the last Welcome was sent to it
  bool joined = false;    // its Hello under this coordinator's fence has come, and it was not lost
  bool has_left = false;  // it has said Leave; it stays known until its round has ended
  std::string boot_id;
  std::uint64_t pid_namespace = 0;
  std::string data_address;
  Digest layout;               // digest of the layout that the sidecar knows
  control::FleetId fleet;      // that it has named; none: it belongs to no fleet yet
  control::Decision decision;  // the newest one that it has stored
  control::Decision origin;    // of the target it has persisted
  Digest target_content;       // of that target
  bool told_conflict = false;  // the people of the fleet know that it holds other bytes
  Delivery delivery;
  // Why the hand-over of an arena by memfd to this process has failed; empty: it has not.
  std::string handover_failure;
  std::uint64_t decided = 0;                      // number it has acknowledged on disc
  std::uint64_t asked = 0;                        // number last sent to it
  TimePoint ask_again{};                          // when that is sent once more
  std::chrono::milliseconds ask_pause{0};         // until then, at the last time
  std::uint64_t switched = 0;                     // number whose outcomes it has reported
  std::string refused;                            // why it refused the decision last sent
  std::vector<control::ReplicaOutcome> outcomes;  // of `switched`
  // Replicas whose outcomes died with the sidecar's last process, which had begun the switch: they
  // count when its heartbeats say that they serve the target.
  std::vector<std::string> unreported;
  // Replicas that could be routed to when the newest decision was made.
  std::vector<std::string> ready_at_decision;
  std::uint64_t staged_bytes = 0;  // progress of its delivery, from its heartbeats
  control::SidecarReport report;

  [[nodiscard]] bool holds(const Version& version) const;
  // Its connection or its process is gone: nothing is on its way to it any more.
  void forget_delivery();
};

class Roster {
 public:
  // The member of that name, made when it is new.
  Member& add(const std::string& name);
  template <class Predicate>
  void forget(Predicate predicate) {
    std::erase_if(members_, [&](const auto& entry) { return predicate(entry.second); });
  }
  [[nodiscard]] Member* by_peer(const std::string& peer);
  // Also finds a member that was lost, by its last address.
  [[nodiscard]] Member* by_last_peer(const std::string& peer);
  [[nodiscard]] std::map<std::string, Member>& members() noexcept { return members_; }
  [[nodiscard]] const std::map<std::string, Member>& members() const noexcept { return members_; }
  [[nodiscard]] std::size_t joined_count() const noexcept;
  // The newest version older than `target`, not in `withdrawn`, that every joined sidecar holds.
  [[nodiscard]] std::optional<Version> rollback_target(const Version& target,
                                                       const std::vector<Version>& withdrawn) const;

 private:
  std::map<std::string, Member> members_;
};

[[nodiscard]] bool contains(const std::vector<Version>& versions, const Version& version) noexcept;
// Replicas of a sidecar with every rank attached.
[[nodiscard]] std::uint32_t whole_replicas(const Member& member) noexcept;

}  // namespace wsync::coordinator
