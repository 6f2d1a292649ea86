// Roster: what the coordinator knows about each sidecar. Pure data; no I/O. Thread: confined to one
// thread.
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

// One sidecar, identified by its name. It stays in the roster when it is lost, and is removed when
// it leaves.
struct Member {
  std::string name;
  std::string peer;       // address on the control port; changes with each of its processes
  std::string last_peer;  // the same, kept after a loss
  TimePoint welcomed{};   // when the last Welcome was sent
  bool joined = false;    // its Hello under this fence has arrived, and it is not lost
  bool has_left = false;  // it has sent Leave; kept until its round has ended
  std::string boot_id;
  std::uint64_t pid_namespace = 0;
  std::vector<control::TransportAddress> transports;  // of its last Hello
  Digest layout;                                      // digest of the layout that the sidecar knows
  control::FleetId fleet;      // as it reported; none: it belongs to no fleet yet
  control::Decision decision;  // newest decision that it has stored
  control::Decision origin;    // of its stored target
  Digest target_content;       // of its stored target
  bool told_conflict = false;  // operators know that it holds other content
  Delivery delivery;
  // Kinds of transport that have failed for this process, and why. They are tried again
  // only if no other is left.
  std::map<std::string, std::string> failed_transports;
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
  std::uint64_t staged_bytes = 0;  // progress of its delivery, from its heartbeats
  control::SidecarReport report;

  [[nodiscard]] bool holds(const Version& version) const;
  // Its connection or process is gone, so its delivery is dropped.
  void forget_delivery();
};

class Roster {
 public:
  // Returns the member of that name; creates it if it is new.
  Member& add(const std::string& name);
  template <class Predicate>
  void forget(Predicate predicate) {
    std::erase_if(members_, [&](const auto& entry) { return predicate(entry.second); });
  }
  [[nodiscard]] Member* by_peer(const std::string& peer);
  // Also finds a lost member, by its last address.
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
// Number of replicas of a sidecar with every rank attached.
[[nodiscard]] std::uint32_t whole_replicas(const Member& member) noexcept;

}  // namespace wsync::coordinator
