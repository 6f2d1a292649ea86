#include "trainer_side/coordinator/page/round_history.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shared/control/progress_phase.h"
#include "shared/observe/status/status_report.h"

namespace wsync::page {

void RoundHistory::began(std::uint64_t request, const Version& version, TimePoint at) {
  if (running_.size() >= kRoundsRunning) return;
  Running& running = running_[request];
  running.record.version = version;
  running.record.began = at;
  running.open = {.name = control::phase_name(control::ProgressPhase::kSnapshot), .begin = at};
}

void RoundHistory::rollback_began(std::uint64_t request, const Version& to, TimePoint at) {
  began(request, to, at);
  const auto it = running_.find(request);
  if (it == running_.end()) return;
  it->second.record.rollback = true;
  it->second.open.name = control::phase_name(control::ProgressPhase::kSwitch);
}

void RoundHistory::promotion_began(std::uint64_t request, const Version& version, TimePoint at) {
  began(request, version, at);
  entered(request, control::ProgressPhase::kSwitch, at);
}

void RoundHistory::close(Running& running, TimePoint at) {
  if (running.open.name.empty()) return;
  running.open.end = at;
  if (running.record.phases.size() < kStagesOfLane) running.record.phases.push_back(running.open);
  running.open = {};
}

// The snapshot is the first phase, also if its end is not the first one.
void RoundHistory::close_copying(Running& running, TimePoint at) {
  if (running.copying.name.empty()) return;
  running.copying.end = at;
  if (running.record.phases.size() < kStagesOfLane)
    running.record.phases.insert(running.record.phases.begin(), running.copying);
  running.copying = {};
}

void RoundHistory::snapshot_taken(std::uint64_t request, const Version& version, TimePoint at) {
  const auto it = running_.find(request);
  if (it == running_.end()) return;
  Running& running = it->second;
  running.record.version = version;
  if (running.copying.name.empty())
    close(running, at);
  else
    close_copying(running, at);
}

void RoundHistory::entered(std::uint64_t request, control::ProgressPhase phase, TimePoint at) {
  const auto it = running_.find(request);
  if (it == running_.end()) return;
  Running& running = it->second;
  if (running.open.name == control::phase_name(control::ProgressPhase::kSnapshot))
    running.copying = std::exchange(running.open, {});
  close(running, at);
  running.open = {.name = control::phase_name(phase), .begin = at};
}

void RoundHistory::round_lost(std::uint64_t request, TimePoint at) {
  if (const auto it = running_.find(request); it != running_.end()) close(it->second, at);
}

void RoundHistory::answered(const std::string& sidecar, const Version& version,
                            std::string_view stage, TimePoint begin, TimePoint end) {
  const auto it = std::find_if(running_.rbegin(), running_.rend(), [&](const auto& entry) {
    return entry.second.record.version == version;
  });
  if (it == running_.rend()) return;
  RoundRecord& record = it->second.record;
  auto lane = std::ranges::lower_bound(record.lanes, sidecar, {}, &RoundLane::sidecar);
  if (lane == record.lanes.end() || lane->sidecar != sidecar) {
    if (record.lanes.size() == kLanesOfRound) {
      ++record.lanes_left_out;
      return;
    }
    lane = record.lanes.insert(lane, {.sidecar = sidecar, .stages = {}});
  }
  if (lane->stages.size() < kStagesOfLane)
    lane->stages.push_back({.name = stage, .begin = begin, .end = end});
}

void RoundHistory::ended(std::uint64_t request, std::string_view result, const std::string& reason,
                         const std::vector<control::ReplicaOutcome>& outcomes, TimePoint at) {
  auto entry = running_.extract(request);
  if (entry.empty()) return;
  close_copying(entry.mapped(), at);
  close(entry.mapped(), at);
  RoundRecord& record = entry.mapped().record;
  record.ended = at;
  record.result = result;
  record.reason = reason;
  const std::size_t kept = std::min(outcomes.size(), kOutcomesOfRound);
  record.outcomes.assign(outcomes.begin(), outcomes.begin() + static_cast<std::ptrdiff_t>(kept));
  record.outcomes_left_out = outcomes.size() - kept;
  ended_.push_front(std::make_shared<const RoundRecord>(std::move(record)));
  if (ended_.size() > kRoundsKept) ended_.pop_back();
}

std::vector<RoundHistory::Round> RoundHistory::rounds(TimePoint at) const {
  std::vector<Round> all;
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    Running running = it->second;
    close_copying(running, at);
    close(running, at);
    running.record.ended = at;
    all.push_back(std::make_shared<const RoundRecord>(std::move(running.record)));
  }
  all.insert(all.end(), ended_.begin(), ended_.end());
  return all;
}

}  // namespace wsync::page
