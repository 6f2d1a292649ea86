// RoundHistory: the latest updates of a coordinator, stage by stage, for its page: when the
// coordinator was in which phase, what each sidecar was asked and how long it took, how each
// replica's switch ended. Bounded, whatever the fleet.
//
// Thread: one; what rounds() gives is for any.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"

namespace wsync::page {

inline constexpr std::size_t kRoundsKept = 5;
inline constexpr std::size_t kRoundsRunning = 8;      // at once; more are not recorded
inline constexpr std::size_t kLanesOfRound = 32;      // sidecars
inline constexpr std::size_t kStagesOfLane = 16;      // a sidecar may be asked again
inline constexpr std::size_t kOutcomesOfRound = 100;  // replicas

struct RoundStage {
  std::string_view name;  // "snapshot", "announce", "stage", "switch": of the program, not the wire
  TimePoint begin{};
  TimePoint end{};
};
// The stages of one sidecar.
struct RoundLane {
  std::string sidecar;
  std::vector<RoundStage> stages;  // by their ends
};
// One update, running or ended.
struct RoundRecord {
  Version version;
  bool rollback = false;
  TimePoint began{};
  TimePoint ended{};        // running: when rounds() was asked
  std::string_view result;  // "served", "failed", "partial" (rollback), "cancelled", "superseded";
                            // empty: it runs
  std::string reason;       // why it was not served
  std::vector<RoundStage> phases;  // of the coordinator
  std::vector<RoundLane> lanes;    // by name
  std::size_t lanes_left_out = 0;  // answers of sidecars beyond kLanesOfRound
  std::vector<control::ReplicaOutcome> outcomes;
  std::size_t outcomes_left_out = 0;
};

class RoundHistory {
 public:
  using Round = std::shared_ptr<const RoundRecord>;

  // The snapshot of a version is being taken from now on.
  void began(std::uint64_t request, const Version& version, TimePoint at);
  void rollback_began(std::uint64_t request, const Version& to, TimePoint at);
  // Its round is in this phase from now on, or waits for the round before it.
  void snapshot_taken(std::uint64_t request, const Version& version, TimePoint at);
  void entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  // A sidecar has answered what it was asked about this version. Passed over when no update of that
  // version runs: a late sidecar that catches up.
  void answered(const std::string& sidecar, const Version& version, std::string_view stage,
                TimePoint begin, TimePoint end);
  // `result` as RoundRecord::result. Passed over when it has never begun.
  void ended(std::uint64_t request, std::string_view result, const std::string& reason,
             const std::vector<control::ReplicaOutcome>& outcomes, TimePoint at);

  // Those that run, the newest first, then those that have ended, the newest first.
  [[nodiscard]] std::vector<Round> rounds(TimePoint at) const;

 private:
  struct Running {
    RoundRecord record;
    RoundStage open;  // an empty name: between two phases
  };
  static void close(Running& running, TimePoint at);
  std::map<std::uint64_t, Running> running_;  // by request
  std::deque<Round> ended_;                   // the newest first
};

}  // namespace wsync::page
