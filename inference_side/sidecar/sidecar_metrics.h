// The metrics of a sidecar: the duration of each switch from pause to resume, what was staged, and
// what failed. The state of the replicas is read when a page is requested.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference_side/reload/pipeline_runner.h"
#include "inference_side/reload/replica_switch.h"
#include "inference_side/staging/sidecar.h"
#include "shared/control/messages.h"
#include "shared/observe/metrics/registry.h"
#include "shared/observe/metrics/status_pages.h"

namespace wsync::agent {

class SidecarMetrics {
 public:
  SidecarMetrics();

  // A command of a replica's switch was sent. The paused time is measured from the load to the
  // resume, and only for a replica that was serving before, because only such a replica had to be
  // paused.
  void sent(const std::string& replica, const reload::SendPause& command, TimePoint at);
  void sent(const std::string& replica, const reload::BeginLoad& command, TimePoint at);
  void sent(const std::string& replica, const reload::SendCommit& command, TimePoint at);
  void sent(const std::string& replica, const reload::SendResume& command, TimePoint at);
  template <class Other>
  void sent(const std::string& /*replica*/, const Other& /*command*/, TimePoint /*at*/) {}
  // A rank was lost, so the switch in progress is not timed.
  void lost(const std::string& replica) { switches_.erase(replica); }
  // A rank has loaded a version, or has failed to.
  void loaded(const reload::RankLoaded& event);
  // A patch to a version that has come was made, or could not be made (0 bytes).
  void patch_made(std::uint64_t bytes);
  // A version of which only what changes was here is complete.
  void completed(bool in_place) { (in_place ? changed_in_place_ : changed_beside_).add(); }
  // It could not be made complete.
  void completion_failed() { changes_lost_.add(); }
  // All bytes of a replica were read again and compared.
  void scrubbed(bool is_equal, std::chrono::nanoseconds cpu);
  void staged(std::uint64_t bytes, std::chrono::nanoseconds duration);
  // The outcomes of a decision. A repeated report counts once.
  void reported(const control::Fence& fence, const control::Switched& switched);
  void failed(ErrorCode code);

  // Whether the replica is inside a switch and was serving when the switch began.
  [[nodiscard]] bool was_serving(const std::string& replica) const;
  [[nodiscard]] metrics::Registry& registry() noexcept { return registry_; }

 private:
  struct Switch {
    bool was_serving = false;
    TimePoint pause_sent{};
    std::optional<TimePoint> paused;       // when its first load was sent
    std::optional<TimePoint> load_sent;    // last load
    std::optional<TimePoint> commit_sent;  // first rank of the last load
  };

  metrics::Registry registry_;
  metrics::Histogram stage_, pause_, load_, commit_;
  metrics::Histogram paused_;
  metrics::Counter staged_bytes_, loaded_bytes_;
  metrics::Counter equal_scrubs_, damaged_scrubs_, scrub_seconds_;
  metrics::Counter full_loads_, patch_loads_, patch_fallbacks_, patch_bytes_;
  metrics::Counter changed_in_place_, changed_beside_, changes_lost_;
  std::map<control::SwitchOutcome, metrics::Counter> switched_;
  std::map<ErrorCode, metrics::Counter> failures_;
  std::map<std::string, Switch> switches_;  // in progress, by replica
  control::Decision reported_;
};

// Values that a scrape reads in addition to the counters. `staged_bytes`: of the arriving version.
// `arena_bytes`: of everything in the store. The others are totals copied since the start.
struct StoreFacts {
  std::uint64_t staged_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t refused_connections = 0;  // Transport::refusals()
  reload::DeviceCopies device_copies;
};
[[nodiscard]] std::vector<metrics::Reading> sidecar_readings(const staging::Sidecar& sidecar,
                                                             const StoreFacts& store, TimePoint at);

// The facts that decide whether a replica is ready.
struct ReplicaFacts {
  control::ReplicaReport report;
  bool is_switching = false;  // paused for a switch, and serving before that
};
[[nodiscard]] std::vector<ReplicaFacts> replica_facts(const staging::Sidecar& sidecar,
                                                      const SidecarMetrics& metrics, TimePoint at);

// Ready if every replica with an attached rank has committed a version and may be routed to, or is
// only paused for a switch. `absent`: replicas without an attached rank that are known. Never
// ready: a sidecar without replicas, and a sidecar with a replica that lacks a rank, is tainted, or
// has been behind for longer than max_staleness.
[[nodiscard]] metrics::Readiness sidecar_readiness(
    const std::vector<ReplicaFacts>& replicas,
    const std::vector<control::ReplicaReport>& absent = {});

}  // namespace wsync::agent
