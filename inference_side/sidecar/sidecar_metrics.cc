#include "inference_side/sidecar/sidecar_metrics.h"

#include <algorithm>
#include <array>

#include "shared/base/format.h"
#include "shared/observe/metrics/catalog.h"
#include "shared/observe/metrics/failures.h"

namespace wsync::agent {
namespace {

using control::ReplicaReport;
using control::ReplicaState;
using control::SwitchOutcome;

constexpr std::array<std::pair<SwitchOutcome, std::string_view>, 5> kOutcomes = {
    {{SwitchOutcome::kCommitted, "committed"},
     {SwitchOutcome::kBehind, "behind"},
     {SwitchOutcome::kRolledBack, "rolled_back"},
     {SwitchOutcome::kTainted, "tainted"},
     {SwitchOutcome::kFailed, "failed"}}};
constexpr std::array<std::pair<ReplicaState, std::string_view>, 6> kStates = {
    {{ReplicaState::kAbsent, "absent"},
     {ReplicaState::kServing, "serving"},
     {ReplicaState::kBehind, "behind"},
     {ReplicaState::kPaused, "paused"},
     {ReplicaState::kLoading, "loading"},
     {ReplicaState::kTainted, "tainted"}}};

}  // namespace

SidecarMetrics::SidecarMetrics()
    : stage_(registry_.histogram(metrics::kUpdateStageSeconds, {"stage"})),
      pause_(registry_.histogram(metrics::kUpdateStageSeconds, {"pause"})),
      load_(registry_.histogram(metrics::kUpdateStageSeconds, {"load"})),
      commit_(registry_.histogram(metrics::kUpdateStageSeconds, {"commit"})),
      paused_(registry_.histogram(metrics::kPausedSeconds)),
      staged_bytes_(registry_.counter(metrics::kUpdateBytes, {"stage"})),
      loaded_bytes_(registry_.counter(metrics::kUpdateBytes, {"load"})),
      equal_scrubs_(registry_.counter(metrics::kScrubs, {"equal"})),
      damaged_scrubs_(registry_.counter(metrics::kScrubs, {"damaged"})),
      scrub_seconds_(registry_.counter(metrics::kScrubSeconds)),
      full_loads_(registry_.counter(metrics::kLoads, {"full"})),
      patch_loads_(registry_.counter(metrics::kLoads, {"patch"})),
      patch_fallbacks_(registry_.counter(metrics::kPatchFallbacks)),
      patch_bytes_(registry_.counter(metrics::kUpdateBytes, {"patch"})),
      changed_in_place_(registry_.counter(metrics::kCopiesChanged, {"in_place"})),
      changed_beside_(registry_.counter(metrics::kCopiesChanged, {"beside"})),
      changes_lost_(registry_.counter(metrics::kCopiesChanged, {"lost"})),
      failures_(metrics::failure_counters(registry_)) {
  for (const auto& [outcome, name] : kOutcomes)
    switched_.emplace(outcome, registry_.counter(metrics::kSwitches, {std::string(name)}));
}

void SidecarMetrics::sent(const std::string& replica, const reload::SendPause& /*command*/,
                          TimePoint at) {
  // A repeated pause does not restart the measurement.
  const auto [entry, is_new] = switches_.try_emplace(replica);
  if (!is_new) return;
  entry->second.was_serving = true;
  entry->second.pause_sent = at;
}

void SidecarMetrics::sent(const std::string& replica, const reload::BeginLoad& /*command*/,
                          TimePoint at) {
  Switch& open = switches_[replica];
  if (!open.paused) {
    if (open.was_serving) pause_.observe(at - open.pause_sent);
    open.paused = at;
  }
  open.load_sent = at;
  open.commit_sent.reset();
}

void SidecarMetrics::sent(const std::string& replica, const reload::SendCommit& /*command*/,
                          TimePoint at) {
  const auto open = switches_.find(replica);
  if (open == switches_.end() || !open->second.load_sent || open->second.commit_sent) return;
  load_.observe(at - *open->second.load_sent);
  open->second.commit_sent = at;
}

void SidecarMetrics::sent(const std::string& replica, const reload::SendResume& /*command*/,
                          TimePoint at) {
  const auto open = switches_.extract(replica);
  if (open.empty()) return;
  const Switch& ended = open.mapped();
  if (ended.commit_sent) commit_.observe(at - *ended.commit_sent);
  if (ended.was_serving && ended.paused) paused_.observe(at - *ended.paused);
}

void SidecarMetrics::loaded(const reload::RankLoaded& event) {
  if (!event.failure.empty()) {
    if (event.by_patch) patch_fallbacks_.add();
    return;
  }
  loaded_bytes_.add(static_cast<double>(event.by_patch ? event.written_bytes : event.bytes));
  (event.by_patch ? patch_loads_ : full_loads_).add();
}

void SidecarMetrics::scrubbed(bool is_equal, std::chrono::nanoseconds cpu) {
  (is_equal ? equal_scrubs_ : damaged_scrubs_).add();
  scrub_seconds_.add(seconds(cpu));
}

void SidecarMetrics::patch_made(std::uint64_t bytes) {
  patch_bytes_.add(static_cast<double>(bytes));
}

void SidecarMetrics::staged(std::uint64_t bytes, std::chrono::nanoseconds duration) {
  stage_.observe(duration);
  staged_bytes_.add(static_cast<double>(bytes));
}

void SidecarMetrics::reported(const control::Fence& fence, const control::Switched& switched) {
  const control::Decision decision{.fence = fence, .number = switched.number};
  if (decision <= reported_) return;
  reported_ = decision;
  for (const control::ReplicaOutcome& outcome : switched.outcomes)
    switched_.at(outcome.outcome).add();
}

void SidecarMetrics::failed(ErrorCode code) { failures_.at(code).add(); }

bool SidecarMetrics::was_serving(const std::string& replica) const {
  const auto open = switches_.find(replica);
  return open != switches_.end() && open->second.was_serving;
}

std::vector<metrics::Reading> sidecar_readings(const staging::Sidecar& sidecar,
                                               const StoreFacts& store, TimePoint at) {
  std::vector<metrics::Reading> readings;
  const auto add = [&](const metrics::Definition& what, double value,
                       std::vector<std::string> labels = {}) {
    readings.push_back({.what = &what, .value = value, .labels = std::move(labels)});
  };
  for (const auto& [name, replica] : sidecar.replicas()) {
    const ReplicaReport report = sidecar.report(replica, at);
    const auto behind = replica.behind_since();
    add(metrics::kReplicaEpoch, report.version.epoch, {name});
    add(metrics::kReplicaStep, static_cast<double>(report.version.step), {name});
    add(metrics::kReplicaReady, report.ready ? 1 : 0, {name});
    add(metrics::kReplicaRanks, report.ranks_attached, {name});
    add(metrics::kReplicaRanksExpected, report.world_size, {name});
    add(metrics::kStaleness, behind ? std::max(0.0, seconds(at - *behind)) : 0, {name});
    for (const auto& [state, state_name] : kStates)
      add(metrics::kReplicaState, report.state == state ? 1 : 0, {name, std::string(state_name)});
  }
  const staging::SidecarRecord& record = sidecar.record();
  add(metrics::kTargetEpoch, record.target.epoch);
  add(metrics::kTargetStep, static_cast<double>(record.target.step));
  add(metrics::kFenceEpoch, static_cast<double>(record.fence.epoch));
  add(metrics::kVersionsHeld, static_cast<double>(sidecar.held().size()));
  add(metrics::kCoordinatorConnected, sidecar.welcomed() ? 1 : 0);
  add(metrics::kDroppedMessages, static_cast<double>(sidecar.dropped()));
  add(metrics::kStagedBytes, static_cast<double>(store.staged_bytes));
  add(metrics::kArenaBytes, static_cast<double>(store.arena_bytes));
  add(metrics::kDataRefusals, static_cast<double>(store.refused_connections));
  add(metrics::kCopiedBytes, static_cast<double>(store.received_bytes), {"receive"});
  add(metrics::kCopiedBytes, static_cast<double>(store.device_copies.h2d_bytes), {"h2d"});
  add(metrics::kCopiedBytes, static_cast<double>(store.device_copies.broadcast_bytes),
      {"broadcast"});
  return readings;
}

std::vector<ReplicaFacts> replica_facts(const staging::Sidecar& sidecar,
                                        const SidecarMetrics& metrics, TimePoint at) {
  std::vector<ReplicaFacts> facts;
  for (const auto& [name, replica] : sidecar.replicas())
    facts.push_back({.report = sidecar.report(replica, at),
                     .is_switching = replica.phase() != reload::SwitchPhase::kIdle &&
                                     metrics.was_serving(name)});
  return facts;
}

metrics::Readiness sidecar_readiness(const std::vector<ReplicaFacts>& replicas,
                                     const std::vector<control::ReplicaReport>& absent) {
  bool any = false;
  for (const auto& [report, is_switching] : replicas) {
    if (report.ranks_attached == 0) continue;
    any = true;
    const bool goes_on = is_switching && report.state != ReplicaState::kTainted &&
                         report.state != ReplicaState::kAbsent;
    if (goes_on || (report.ready && !report.version.none())) continue;
    std::string_view state_name = "unknown";
    for (const auto& [state, name] : kStates)
      if (state == report.state) state_name = name;
    return {.ready = false,
            .reason = fmt::format(
                "replica '{}' is {}: {}", report.replica, state_name,
                report.ready ? "no version has been committed to it yet" : report.reason)};
  }
  if (any) return {.ready = true, .reason = {}};
  if (absent.empty()) return {.ready = false, .reason = "no engine is attached"};
  return {.ready = false,
          .reason = fmt::format("no engine is attached: replica '{}': {}", absent.front().replica,
                                absent.front().reason)};
}

}  // namespace wsync::agent
