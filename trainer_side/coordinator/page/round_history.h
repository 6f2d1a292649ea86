// RoundHistory: the latest updates of a coordinator, stage by stage, for its page: the phases of
// the coordinator, the requests to each sidecar and their durations, and the outcome of each
// replica's switch. Its size is limited, regardless of the fleet.
//
// Thread: confined to one thread; any thread may use the result of rounds().
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
inline constexpr std::size_t kRoundsRunning = 8;  // at the same time; further ones are not recorded
inline constexpr std::size_t kLanesOfRound = 32;  // sidecars
inline constexpr std::size_t kStagesOfLane = 16;  // a sidecar may be asked several times
inline constexpr std::size_t kOutcomesOfRound = 100;  // replicas

struct RoundStage {
  std::string_view name;  // "snapshot", "announce", "stage", "switch"; a string literal
  TimePoint begin{};
  TimePoint end{};
};
// The stages of one sidecar.
struct RoundLane {
  std::string sidecar;
  std::vector<RoundStage> stages;  // ordered by end time
};
// One update, running or ended.
struct RoundRecord {
  Version version;
  bool rollback = false;
  TimePoint began{};
  TimePoint ended{};  // if running: time of the call of rounds()
  // "served", "failed", "partial", "cancelled", "superseded"; empty: it runs.
  std::string_view result;
  std::string reason;              // why it was not served
  std::vector<RoundStage> phases;  // of the coordinator
  std::vector<RoundLane> lanes;    // by name
  std::size_t lanes_left_out = 0;  // answers of sidecars beyond kLanesOfRound
  std::vector<control::ReplicaOutcome> outcomes;
  std::size_t outcomes_left_out = 0;
};

class RoundHistory {
 public:
  using Round = std::shared_ptr<const RoundRecord>;

  // The snapshot of a version begins.
  void began(std::uint64_t request, const Version& version, TimePoint at);
  void rollback_began(std::uint64_t request, const Version& to, TimePoint at);
  void promotion_began(std::uint64_t request, const Version& version, TimePoint at);
  // The round enters this phase, or waits for the previous round.
  void snapshot_taken(std::uint64_t request, const Version& version, TimePoint at);
  void entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  // The round is over, and the publish waits for another one.
  void round_lost(std::uint64_t request, TimePoint at);
  // A sidecar has answered a request about this version. Ignored if no update of that version is
  // running, because a late sidecar is then catching up.
  void answered(const std::string& sidecar, const Version& version, std::string_view stage,
                TimePoint begin, TimePoint end);
  // `result` as in RoundRecord::result. Ignored if it has never begun.
  void ended(std::uint64_t request, std::string_view result, const std::string& reason,
             const std::vector<control::ReplicaOutcome>& outcomes, TimePoint at);

  // The running updates, newest first, then the ended ones, newest first.
  [[nodiscard]] std::vector<Round> rounds(TimePoint at) const;

 private:
  struct Running {
    RoundRecord record;
    RoundStage open;     // an empty name: between two phases
    RoundStage copying;  // its snapshot, if its round has begun before the end of it
  };
  static void close_copying(Running& running, TimePoint at);
  static void close(Running& running, TimePoint at);
  std::map<std::uint64_t, Running> running_;  // by request
  std::deque<Round> ended_;                   // newest first
};

}  // namespace wsync::page
