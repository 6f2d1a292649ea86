#include "trainer_side/coordinator/round_metrics.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shared/base/format.h"
#include "shared/control/progress_phase.h"
#include "shared/observe/metrics/catalog.h"
#include "shared/observe/metrics/failures.h"

namespace wsync::coordinator {
namespace {

using control::ProgressPhase;
using control::ReplicaState;

constexpr std::array kCoordinatorPhases = {
    CoordinatorPhase::kGathering,  CoordinatorPhase::kClaiming, CoordinatorPhase::kReady,
    CoordinatorPhase::kAnnouncing, CoordinatorPhase::kStaging,  CoordinatorPhase::kSwitching,
    CoordinatorPhase::kStopped};

// Counts of replicas of the joined sidecars.
struct FleetCount {
  std::uint32_t known = 0;
  std::uint32_t ready = 0;
  std::uint32_t current = 0;  // serve the target
  std::uint32_t halted = 0;   // paused or loading, but ready when the newest decision was made
};

FleetCount count_replicas(const Coordinator& coordinator) {
  FleetCount count;
  for (const auto& [name, member] : coordinator.roster().members()) {
    if (!member.joined) continue;
    for (const control::ReplicaReport& replica : member.report.replicas) {
      ++count.known;
      if (replica.ready && !replica.version.none()) ++count.ready;
      if (replica.state == ReplicaState::kServing && !replica.version.none() &&
          replica.version == coordinator.target())
        ++count.current;
      if ((replica.state == ReplicaState::kPaused || replica.state == ReplicaState::kLoading) &&
          std::ranges::find(member.ready_at_decision, replica.replica) !=
              member.ready_at_decision.end())
        ++count.halted;
    }
  }
  return count;
}

}  // namespace

RoundMetrics::RoundMetrics()
    : snapshot_bytes_(registry_.counter(metrics::kUpdateBytes, {"snapshot"})),
      changed_in_place_(registry_.counter(metrics::kCopiesChanged, {"in_place"})),
      changed_beside_(registry_.counter(metrics::kCopiesChanged, {"beside"})),
      changes_lost_(registry_.counter(metrics::kCopiesChanged, {"lost"})),
      committed_(registry_.counter(metrics::kUpdates, {"committed"})),
      superseded_(registry_.counter(metrics::kUpdates, {"superseded"})),
      failed_(registry_.counter(metrics::kUpdates, {"failed"})),
      cancelled_(registry_.counter(metrics::kUpdates, {"cancelled"})),
      rollbacks_done_(registry_.counter(metrics::kRollbacks, {"done"})),
      rollbacks_partial_(registry_.counter(metrics::kRollbacks, {"partial"})),
      rollbacks_failed_(registry_.counter(metrics::kRollbacks, {"failed"})),
      failures_(metrics::failure_counters(registry_)) {
  for (const ProgressPhase phase : control::kProgressPhases)
    phases_.emplace(phase, registry_.histogram(metrics::kUpdateStageSeconds,
                                               {std::string(control::phase_name(phase))}));
}

void RoundMetrics::snapshot_taken(std::uint64_t bytes, std::chrono::nanoseconds duration) {
  phases_.at(ProgressPhase::kSnapshot).observe(duration);
  snapshot_bytes_.add(static_cast<double>(bytes));
}

void RoundMetrics::close(std::uint64_t request, TimePoint at) {
  const auto phase = open_.extract(request);
  if (!phase.empty()) phases_.at(phase.mapped().phase).observe(at - phase.mapped().begin);
}

void RoundMetrics::entered(std::uint64_t request, ProgressPhase phase, TimePoint at) {
  close(request, at);
  open_[request] = {.phase = phase, .begin = at};
}

void RoundMetrics::ended(const RoundDone& done, TimePoint at) {
  close(done.request, at);
  if (done.superseded)
    superseded_.add();
  else if (done.reply.ok)
    committed_.add();
  else
    failed(done.cancelled ? ErrorCode::kCancelled : control::failure_code(done.reply));
}

void RoundMetrics::failed(ErrorCode code) {
  if (code == ErrorCode::kCancelled) {
    cancelled_.add();
    return;
  }
  failed_.add();
  failures_.at(code).add();
}

void RoundMetrics::rolled_back(const control::RollbackReply& reply) {
  (reply.ok ? rollbacks_done_ : reply.partial ? rollbacks_partial_ : rollbacks_failed_).add();
}

std::vector<metrics::Reading> publish_readings(const PublishFacts& publish) {
  std::vector<metrics::Reading> readings;
  const auto add = [&](const metrics::Definition& what, double value) {
    readings.push_back({.what = &what, .value = value, .labels = {}});
  };
  add(metrics::kQueueDepth, static_cast<double>(publish.queued));
  add(metrics::kArenaBytes, static_cast<double>(publish.arena_bytes));
  add(metrics::kWireBytes, static_cast<double>(publish.wire_bytes));
  add(metrics::kDataRefusals, static_cast<double>(publish.refused_connections));
  if (publish.directory) {
    add(metrics::kDirectoryEpoch, publish.directory->written.epoch);
    add(metrics::kDirectoryStep, static_cast<double>(publish.directory->written.step));
    add(metrics::kDirectoryBehind, static_cast<double>(publish.directory->behind));
    add(metrics::kDirectoryFailures, static_cast<double>(publish.directory->failures));
  }
  return readings;
}

std::vector<metrics::Reading> fleet_readings(const Coordinator& coordinator,
                                             const PublishFacts& publish) {
  std::vector<metrics::Reading> readings = publish_readings(publish);
  const auto add = [&](const metrics::Definition& what, double value,
                       std::vector<std::string> labels = {}) {
    readings.push_back({.what = &what, .value = value, .labels = std::move(labels)});
  };
  const FleetCount count = count_replicas(coordinator);
  add(metrics::kSidecars, static_cast<double>(coordinator.roster().joined_count()));
  add(metrics::kReplicas, count.known);
  add(metrics::kReplicasReady, count.ready);
  add(metrics::kReplicasCurrent, count.current);
  add(metrics::kReplicasRequired, publish.min_replicas);
  add(metrics::kTargetEpoch, coordinator.target().epoch);
  add(metrics::kTargetStep, static_cast<double>(coordinator.target().step));
  add(metrics::kFenceEpoch, static_cast<double>(coordinator.fence().epoch));
  add(metrics::kCanaryWaiting, coordinator.canary_waiting());
  add(metrics::kDroppedMessages, static_cast<double>(coordinator.dropped()));
  for (const CoordinatorPhase phase : kCoordinatorPhases)
    add(metrics::kPhase, coordinator.phase() == phase ? 1 : 0, {std::string(phase_name(phase))});
  return readings;
}

metrics::Readiness fleet_readiness(const Coordinator& coordinator, std::uint32_t min_replicas) {
  const CoordinatorPhase phase = coordinator.phase();
  if (phase == CoordinatorPhase::kStopped)
    return {.ready = false,
            .reason = "this coordinator has stopped: " + coordinator.stopped()->reason};
  if (phase < CoordinatorPhase::kReady)
    return {.ready = false,
            .reason = fmt::format("the coordinator is {}: {} sidecars have joined it",
                                  phase_name(phase), coordinator.roster().joined_count())};
  const std::string unreached = coordinator.transport_problems();
  const std::string also = unreached.empty() ? "" : "; " + unreached;
  if (coordinator.target().none())
    return {.ready = false, .reason = "no version has been decided on yet" + also};
  const FleetCount count = count_replicas(coordinator);
  const std::uint32_t serving =
      count.ready + (phase == CoordinatorPhase::kSwitching ? count.halted : 0);
  if (serving >= min_replicas) return {.ready = true, .reason = {}};
  return {.ready = false,
          .reason = fmt::format(
              "requests may be routed to {} of {} replicas, expected at least {} (min_replicas){}",
              serving, count.known, min_replicas, also)};
}

}  // namespace wsync::coordinator
