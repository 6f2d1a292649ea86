#include "trainer_side/publish/round_trace.h"

#include <algorithm>
#include <optional>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/control/progress_phase.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/update_flows.h"

namespace wsync::publish {

void RoundTrace::close(const std::string& lane, const Phase& phase, TimePoint at) {
  if (!recorder_.wanted()) return;
  const std::string version = phase.version.to_string();
  recorder_.record({.name = fmt::format("{} {}", control::phase_name(phase.phase), version),
                    .lane = lane,
                    .category = trace::Category::kOther,
                    .begin = phase.begin,
                    .end = at,
                    .label = {},
                    .args = {{.name = "version", .value = version}}});
}

void RoundTrace::snapshot_taken(const Snapshot& snapshot, TimePoint begin, TimePoint end) {
  if (!recorder_.wanted()) return;
  const std::string version = snapshot.version().to_string();
  const BucketPlan& plan = *snapshot.plan();
  recorder_.record(
      {.name = "snapshot of " + version,
       .lane = "snapshot",
       .category = trace::Category::kStage,
       .begin = begin,
       .end = end,
       .label = {},
       .args = {{.name = "version", .value = version},
                {.name = "bytes", .value = static_cast<std::int64_t>(plan.arena_bytes())}}});
  const auto& times = snapshot.bucket_times();
  const auto part = [&](std::string_view what, TimePoint from, TimePoint to) {
    if (from < to)
      recorder_.record({.name = fmt::format("{} for {}", what, version),
                        .lane = "snapshot arena",
                        .category = trace::Category::kStage,
                        .begin = from,
                        .end = to,
                        .label = {},
                        .args = {{.name = "version", .value = version}}});
  };
  // The copy begins as soon as there is an arena; before that the source was opened.
  const TimePoint copy = times.empty() ? end : times.front().begin;
  const TimePoint created = copy + -snapshot.times().setup;
  const TimePoint waited = created + -snapshot.times().wait;
  part("opening of the source", begin, waited);
  part("wait for an arena", waited, created);
  part("creation of an arena", created, copy);
  const auto last = std::ranges::max_element(times, {}, &Snapshot::BucketTime::end);
  part("digests and header", last == times.end() ? end : last->end, end);
  for (std::size_t i = 0; i < times.size(); ++i)
    recorder_.record(
        {.name = fmt::format("snapshot of bucket {}", i),
         .lane = "snapshot of buckets",
         .category = trace::Category::kStage,
         .begin = times[i].begin,
         .end = times[i].end,
         .label = {},
         .args = trace::stage_args(trace::Stage::kSnapshot, {.version = version,
                                                             .bucket = i,
                                                             .offset = plan.bucket_offset(i),
                                                             .bytes = plan.bucket_size(i)})});
}

void RoundTrace::version_completed(const ServedVersions::Completed& completed) {
  if (!recorder_.wanted()) return;
  const std::string version = completed.version.to_string();
  const std::string base = completed.base.to_string();
  recorder_.record(
      {.name =
           fmt::format("{} {} to {}", completed.in_place ? "changing" : "copying", base, version),
       .lane = "snapshot arena",
       .category = trace::Category::kStage,
       .begin = completed.begin,
       .end = completed.end,
       .label = {},
       .args = {{.name = "version", .value = version},
                {.name = "base", .value = base},
                {.name = "bytes", .value = static_cast<std::int64_t>(completed.bytes)}}});
}

void RoundTrace::record_stored(const Version& target, TimePoint begin, TimePoint end) {
  if (!recorder_.wanted() || target.none()) return;  // no update
  const std::string version = target.to_string();
  recorder_.record({.name = fmt::format("record with target {}", version),
                    .lane = "record",
                    .category = trace::Category::kOther,
                    .begin = begin,
                    .end = end,
                    .label = {},
                    .args = {{.name = "version", .value = version}}});
}

void RoundTrace::entered(std::uint64_t request, const Version& version,
                         control::ProgressPhase phase, TimePoint at) {
  if (!recorder_.wanted()) return;
  ended(request, at);
  open_[request] = {.phase = phase, .version = version, .begin = at};
}

void RoundTrace::ended(std::uint64_t request, TimePoint at) {
  auto phase = open_.extract(request);
  if (!phase.empty()) close("round", phase.mapped(), at);
}

void RoundTrace::sent(const std::string& sidecar, const control::Message& message, TimePoint at) {
  std::optional<Phase> phase;
  if (const auto* announce = std::get_if<control::Announce>(&message))
    phase = {.phase = control::ProgressPhase::kAnnounce, .version = announce->version, .begin = at};
  else if (const auto* stage = std::get_if<control::Stage>(&message))
    phase = {.phase = control::ProgressPhase::kStage, .version = stage->version, .begin = at};
  else if (const auto* decide = std::get_if<control::Decide>(&message))
    phase = {.phase = control::ProgressPhase::kSwitch, .version = decide->target, .begin = at};
  if (!phase) return;
  // A request that got no answer makes no span. One that is sent again goes on.
  const auto open = asked_.find(sidecar);
  if (open != asked_.end() && open->second.phase == phase->phase &&
      open->second.version == phase->version)
    return;
  asked_[sidecar] = *phase;
}

std::optional<RoundTrace::Answered> RoundTrace::received(const std::string& sidecar,
                                                         const control::Message& message,
                                                         TimePoint at) {
  const auto open = asked_.find(sidecar);
  if (open == asked_.end()) return std::nullopt;
  const control::ProgressPhase asked = open->second.phase;
  const bool ends = asked == control::ProgressPhase::kAnnounce
                        ? std::holds_alternative<control::Accept>(message) ||
                              std::holds_alternative<control::Refuse>(message)
                    : asked == control::ProgressPhase::kStage
                        ? std::holds_alternative<control::Staged>(message)
                        : std::holds_alternative<control::Switched>(message);
  if (!ends) return std::nullopt;
  const Phase phase = asked_.extract(open).mapped();
  close("sidecar " + sidecar, phase, at);
  return Answered{
      .stage = control::phase_name(phase.phase), .version = phase.version, .begin = phase.begin};
}

void RoundTrace::write() const {
  if (path_.empty()) return;
  const auto written =
      trace::write_chrome_trace(path_ + ".json", {{.name = "coordinator",
                                                   .pid = static_cast<std::uint32_t>(::getpid()),
                                                   .spans = recorder_.spans(),
                                                   .host = host_name(),
                                                   .dropped = recorder_.dropped()}});
  if (!written) log_warning("trace: {}", written.error().message());
}

}  // namespace wsync::publish
