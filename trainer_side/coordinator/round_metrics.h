// Metrics of a coordinator, also shown on its pages: snapshots, the phases of each round and its
// end, and the current state of the fleet.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shared/control/messages.h"
#include "shared/observe/metrics/registry.h"
#include "shared/observe/metrics/status_pages.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::coordinator {

class RoundMetrics {
 public:
  RoundMetrics();

  void snapshot_taken(std::uint64_t bytes, std::chrono::nanoseconds duration);
  // A version that was held as its changes got the arena of its base, or another one.
  void version_completed(bool in_place) { (in_place ? changed_in_place_ : changed_beside_).add(); }
  // It could not be made complete.
  void version_lost() { changes_lost_.add(); }
  // The round of a request enters a phase; its previous phase ends.
  void entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  // The round has ended.
  void ended(const RoundDone& done, TimePoint at);
  // The round is over, and its publish waits for another one.
  void round_lost(std::uint64_t request, TimePoint at) { close(request, at); }
  // A publish ended without a round.
  void failed(ErrorCode code);
  void rolled_back(const control::RollbackReply& reply);

  [[nodiscard]] metrics::Registry& registry() noexcept { return registry_; }

 private:
  struct Phase {
    control::ProgressPhase phase = control::ProgressPhase::kAnnounce;
    TimePoint begin{};
  };
  void close(std::uint64_t request, TimePoint at);

  metrics::Registry registry_;
  std::map<control::ProgressPhase, metrics::Histogram> phases_;
  metrics::Counter snapshot_bytes_;
  metrics::Counter changed_in_place_, changed_beside_, changes_lost_;
  metrics::Counter committed_, superseded_, failed_, cancelled_;
  metrics::Counter rollbacks_done_, rollbacks_partial_, rollbacks_failed_;
  std::map<ErrorCode, metrics::Counter> failures_;
  std::map<std::uint64_t, Phase> open_;  // by request
};

// What the folder has to which decided versions are written.
struct DirectoryFacts {
  Version written;             // that `latest` names, as far as this process wrote it; 0.0: none
  std::uint64_t behind = 0;    // versions that were decided since, the one being written included
  std::uint64_t failures = 0;  // writes that failed
};

// Values that a scrape reads from a coordinator in addition to the counters.
struct PublishFacts {
  std::uint64_t queued = 0;               // publishes waiting for their snapshot
  std::uint64_t arena_bytes = 0;          // size of the snapshots' arenas
  std::uint64_t wire_bytes = 0;           // bytes of weights sent as copies
  std::uint64_t refused_connections = 0;  // transport::Transport::refusals()
  std::uint32_t min_replicas = 1;
  std::optional<DirectoryFacts> directory;  // if decided versions are written to a folder
};
// Those of the publishing side alone.
[[nodiscard]] std::vector<metrics::Reading> publish_readings(const PublishFacts& publish);
// Those of the fleet, and of the publishing side.
[[nodiscard]] std::vector<metrics::Reading> fleet_readings(const Coordinator& coordinator,
                                                           const PublishFacts& publish);

// Ready: this coordinator leads the fleet and has decided on a version, and requests may be routed
// to at least `min_replicas` replicas. During a switch, replicas that are stopped for it also count
// if requests could be routed to them before.
[[nodiscard]] metrics::Readiness fleet_readiness(const Coordinator& coordinator,
                                                 std::uint32_t min_replicas);

}  // namespace wsync::coordinator
