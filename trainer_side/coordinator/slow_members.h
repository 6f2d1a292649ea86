// SlowMembers: the sidecars that a round of a new version leaves out, because they are still
// staging the version before it. Without this a sidecar that needs longer for a version than the
// trainer needs to publish the next one would begin again and again, and never serve anything new.
//
// A sidecar that is left out gets the decision of its version at once, and switches when every byte
// has arrived. Then it is brought to the newest version. Until then its snapshot is kept in place
// of the previous target's, so the trainer needs no memory in addition. For that reason only one
// version can be finished at a time.
//
// Only under `commit: quorum` or `each`, and only if the other sidecars suffice for the round.
// Thread: confined to one thread. No I/O.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

// Whether the sidecar is still receiving the version that it finishes.
[[nodiscard]] bool is_finishing(const Member& member);
// Number of complete replicas that must have staged a version before it can be decided.
[[nodiscard]] std::uint32_t needed_replicas(const CoordinatorOptions& options);

class SlowMembers {
 public:
  // A round begins. Returns the names of the sidecars that it must leave out. `record`: in effect.
  [[nodiscard]] std::set<std::string> leave_out(CoordinatorContext& context,
                                                const CoordinatorRecord& record);
  // A decision is in effect that all sidecars must follow at once, for example a rollback. Stops
  // what they are finishing.
  void interrupt(CoordinatorContext& context, const std::string& why);

  // The version that is being finished; 0.0 if there is none.
  [[nodiscard]] Version version(const Roster& roster) const;
  // Names of sidecars; some of them may have finished.
  [[nodiscard]] const std::set<std::string>& names() const noexcept { return names_; }

 private:
  void remove_finished(const Roster& roster);

  std::set<std::string> names_;
  Version version_;
};

}  // namespace wsync::coordinator
