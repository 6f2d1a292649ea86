// Canary: what the sidecars report of the replica that switches first, and of those that wait for
// its promotion. From the first report that the canary serves the target while others do not, the
// version is held: no publish begins, until the version is promoted, rolled back, or no longer
// served by the canary. Otherwise a trainer that publishes all the time would give every version
// to the canary and none to the others.
//
// Nothing of this is stored, except the kind of the decision (DecisionKind::kSwitchCanary). A
// restarted coordinator learns the rest from the reports.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::coordinator {

class Canary {
 public:
  // `name`: of the replica, empty for none; equal names of several sidecars are all canaries.
  // `time`: how long the version is held, 0 for ever.
  Canary(std::string name, std::chrono::milliseconds time) : name_(std::move(name)), time_(time) {}

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  // Reads the report of a member. `is_held_back`: the newest decision is for the canary only;
  // `target`: of that decision.
  void report(const Member& member, bool is_held_back, const Version& target);
  // After all reports of an event: notes since when the version has been held.
  void settle(TimePoint now);
  // The promotion that was due could not be stored, so it is due later.
  void retry(TimePoint at) noexcept { promote_at_ = at; }

  // Whether the canary serves the target, and others do not.
  [[nodiscard]] bool holds() const noexcept { return serving_ > 0 && behind_ > 0; }
  [[nodiscard]] bool serves() const noexcept { return serving_ > 0; }
  // Number of replicas that serve another version than the target, of all sidecars.
  [[nodiscard]] std::uint32_t behind() const noexcept { return behind_; }
  // When the others switch without being asked to; std::nullopt: never.
  [[nodiscard]] std::optional<TimePoint> promote_at() const noexcept { return promote_at_; }
  // Counts everything again. Returns kInternal with the first difference.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Counts {
    std::uint32_t serving = 0;  // canaries that serve the target
    std::uint32_t behind = 0;   // other replicas that serve another version
  };

  std::string name_;
  std::chrono::milliseconds time_;
  std::map<std::string, Counts> sidecars_;  // without those that have nothing to count
  std::uint32_t serving_ = 0;
  std::uint32_t behind_ = 0;
  Version target_;  // at the last report
  std::optional<TimePoint> promote_at_;
};

}  // namespace wsync::coordinator
