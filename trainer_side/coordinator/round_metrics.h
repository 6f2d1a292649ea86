// What a coordinator counts, and what its pages show: snapshots, the phases of each round and how
// it ended; the fleet as it is when somebody asks.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/control/messages.h"
#include "shared/observe/metrics/registry.h"
#include "shared/observe/metrics/status_pages.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::publish {

class RoundMetrics {
 public:
  RoundMetrics();

  void snapshot_taken(std::uint64_t bytes, std::chrono::nanoseconds duration);
  // The round of a request enters a phase; the one before it ends.
  void entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at);
  // The round has ended.
  void ended(const RoundDone& done, TimePoint at);
  // A publish that never became a round.
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
  metrics::Counter committed_, superseded_, failed_, cancelled_;
  metrics::Counter rollbacks_done_, rollbacks_partial_, rollbacks_failed_;
  std::map<ErrorCode, metrics::Counter> failures_;
  std::map<std::uint64_t, Phase> open_;  // by request
};

// What a scrape reads of a coordinator beside its counters.
struct PublishFacts {
  std::uint64_t queued = 0;       // publishes that wait for their snapshot
  std::uint64_t arena_bytes = 0;  // of snapshots
  std::uint64_t wire_bytes = 0;   // that went over TCP
  std::uint32_t min_replicas = 1;
};
[[nodiscard]] std::vector<metrics::Reading> fleet_readings(const Coordinator& coordinator,
                                                           const PublishFacts& publish);

// Ready: this coordinator has the fleet, has decided on a version, and at least `min_replicas`
// replicas may be routed to; while it switches them, those that stand still for it count too, if
// they could be routed to before.
[[nodiscard]] metrics::Readiness fleet_readiness(const Coordinator& coordinator,
                                                 std::uint32_t min_replicas);

}  // namespace wsync::publish
