#include "trainer_side/publish/update_journal.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::publish {
namespace {

using control::ProgressPhase;

// A longer estimate results from a rate close to zero, and is meaningless.
constexpr double kRemainingMaxS = 365.0 * 86'400;

std::uint64_t journal_ns(TimePoint from, TimePoint to) {
  const std::chrono::nanoseconds passed = to - from;
  return passed.count() < 0 ? 0 : static_cast<std::uint64_t>(passed.count());
}

std::uint64_t worst_pause(const std::vector<control::ReplicaOutcome>& outcomes) {
  std::uint64_t worst = 0;
  for (const control::ReplicaOutcome& outcome : outcomes)
    worst = std::max(worst, outcome.paused_ns);
  return worst;
}

}  // namespace

void UpdateJournal::began(std::uint64_t request, const Version& version, TimePoint at) {
  running_[request] = {.version = version, .began = at, .phase_began = at};
}

void UpdateJournal::rollback_began(std::uint64_t request, const Version& to, TimePoint at) {
  running_[request] = {.version = to,
                       .phase = ProgressPhase::kSwitch,
                       .rollback = true,
                       .in_round = true,
                       .began = at,
                       .phase_began = at};
}

void UpdateJournal::promotion_began(std::uint64_t request, const Version& version, TimePoint at) {
  rollback_began(request, version, at);
  running_.at(request).rollback = false;
}

void UpdateJournal::snapshot_taken(std::uint64_t request, const Version& version,
                                   std::uint64_t model_bytes) {
  const auto found = running_.find(request);
  if (found == running_.end()) return;
  found->second.version = version;
  found->second.model_bytes = model_bytes;
}

void UpdateJournal::entered(std::uint64_t request, ProgressPhase phase, TimePoint at) {
  const auto found = running_.find(request);
  if (found == running_.end()) return;
  found->second.phase = phase;
  found->second.in_round = true;
  found->second.phase_began = at;
}

void UpdateJournal::round_lost(std::uint64_t request, TimePoint at) {
  const auto found = running_.find(request);
  if (found == running_.end()) return;
  found->second.phase = ProgressPhase::kSnapshot;
  found->second.in_round = false;
  found->second.phase_began = at;
}

void UpdateJournal::finish(control::UpdateOutcome outcome, UpdateEnd end, TimePoint at) {
  outcome.ok = end == UpdateEnd::kCommitted;
  outcome.cancelled = end == UpdateEnd::kCancelled;
  if (outcome.ok) {
    ++counters_.committed;
  } else if (outcome.cancelled) {
    ++counters_.cancelled;
  } else {
    ++counters_.failed;
    incident(
        outcome.version.none()
            ? fmt::format("an update failed: {}", outcome.reason)
            : fmt::format("{} {}: {}", outcome.version.to_string(),
                          end == UpdateEnd::kPartial ? "is partial" : "failed", outcome.reason),
        at);
  }
  last_ = std::move(outcome);
  last_ended_ = at;
}

void UpdateJournal::ended(std::uint64_t request, UpdateEnd end, const control::PushReply& reply,
                          TimePoint at) {
  const auto entry = running_.extract(request);
  if (end == UpdateEnd::kSuperseded) return;
  const Version begun = entry.empty() ? Version{} : entry.mapped().version;
  if (end == UpdateEnd::kCommitted && reply.bytes > 0) {
    const auto bytes = static_cast<double>(reply.bytes);
    pace_ = Pace{.staged = static_cast<double>(reply.staged_ns) * 1e-9 / bytes,
                 .switched = static_cast<double>(reply.switch_ns) * 1e-9 / bytes};
  }
  finish({.version = reply.version.none() ? begun : reply.version,
          .reason = end == UpdateEnd::kCommitted ? std::string() : reply.reason,
          .bytes = reply.bytes,
          .snapshot_ns = reply.snapshot_ns,
          .staged_ns = reply.staged_ns,
          .switch_ns = reply.switch_ns,
          .paused_ns = worst_pause(reply.outcomes)},
         end, at);
}

void UpdateJournal::rollback_ended(std::uint64_t request, const control::RollbackReply& reply,
                                   TimePoint at) {
  const auto entry = running_.extract(request);
  if (entry.empty()) return;
  finish({.version = reply.to,
          .reason = reply.ok ? std::string() : reply.reason,
          .switch_ns = journal_ns(entry.mapped().began, at),
          .paused_ns = worst_pause(reply.outcomes)},
         reply.ok        ? UpdateEnd::kCommitted
         : reply.partial ? UpdateEnd::kPartial
                         : UpdateEnd::kFailed,
         at);
}

void UpdateJournal::promotion_ended(std::uint64_t request, const control::PromoteReply& reply,
                                    TimePoint at) {
  rollback_ended(request,
                 {.ok = reply.ok,
                  .partial = reply.partial,
                  .reason = reply.reason,
                  .from = {},
                  .to = reply.version,
                  .outcomes = reply.outcomes},
                 at);
}

void UpdateJournal::incident(std::string text, TimePoint at) {
  incidents_.push_front({.at = at, .text = std::move(text)});
  if (incidents_.size() > limits::kIncidentCount) incidents_.pop_back();
}

std::uint64_t UpdateJournal::shown() const noexcept {
  for (const auto& [request, running] : running_)
    if (running.in_round) return request;
  return running_.empty() ? 0 : running_.begin()->first;
}

std::optional<double> UpdateJournal::remaining_s(const Running& running, const PhaseBytes& moved,
                                                 TimePoint now) const {
  const double passed = static_cast<double>(journal_ns(running.phase_began, now)) * 1e-9;
  std::optional<double> phase;
  if (moved.done > 0 && moved.total >= moved.done && passed > 0)
    phase =
        static_cast<double>(moved.total - moved.done) * passed / static_cast<double>(moved.done);
  const std::uint64_t model = running.phase == ProgressPhase::kSnapshot && running.model_bytes == 0
                                  ? moved.total
                                  : running.model_bytes;
  const bool paced = pace_ && model > 0;
  const double staged = paced ? pace_->staged * static_cast<double>(model) : 0;
  const double switched = paced ? pace_->switched * static_cast<double>(model) : 0;
  switch (running.phase) {
    case ProgressPhase::kSnapshot:
      if (!phase || !paced) return std::nullopt;
      return *phase + staged + switched;
    // A phase that has lasted longer than a whole update is blocked for an unknown time.
    case ProgressPhase::kAnnounce:
      if (!paced || passed > staged + switched) return std::nullopt;
      return staged + switched;
    case ProgressPhase::kStage:
      if (phase) return *phase + switched;
      if (!paced || passed > staged + switched) return std::nullopt;
      return std::max(0.0, staged - passed) + switched;
    case ProgressPhase::kSwitch:
      if (phase) return phase;
      if (!paced || passed > staged + switched) return std::nullopt;
      return std::max(0.0, switched - passed);
  }
  return std::nullopt;
}

void UpdateJournal::report(const PhaseBytes& moved, TimePoint now,
                           control::StatusReply& out) const {
  out.last = last_;
  if (!last_.version.none() || !last_.reason.empty())
    out.last.ended_ago_ns = journal_ns(last_ended_, now);
  out.updates = counters_;
  for (const Incident& kept : incidents_)
    out.incidents.push_back({.ago_ns = journal_ns(kept.at, now), .text = kept.text});
  const auto found = running_.find(shown());
  if (found == running_.end()) return;
  const Running& running = found->second;
  control::UpdateProgress& progress = out.running;
  progress.version = running.version;
  progress.phase = running.phase;
  progress.rollback = running.rollback;
  progress.done_bytes = moved.done;
  progress.total_bytes = moved.total;
  progress.elapsed_ns = journal_ns(running.began, now);
  progress.phase_ns = journal_ns(running.phase_began, now);
  if (progress.phase_ns > 0)
    progress.bytes_per_s = static_cast<std::uint64_t>(static_cast<double>(moved.done) * 1e9 /
                                                      static_cast<double>(progress.phase_ns));
  if (const auto left = remaining_s(running, moved, now); left && *left < kRemainingMaxS) {
    progress.remaining_known = true;
    progress.remaining_ns = static_cast<std::uint64_t>(std::llround(*left * 1e9));
  }
  progress.waiting = static_cast<std::uint32_t>(running_.size() - 1);
}

}  // namespace wsync::publish
