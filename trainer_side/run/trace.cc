#include "trainer_side/run/trace.h"

#include <numeric>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/text_file.h"
#include "shared/process_group/collectives.h"
#include "trainer_side/schedule/picture.h"

namespace wsync::cli {
namespace {

constexpr std::size_t kStepsKept = 8;
constexpr double kMillisecond = 1e-6;  // milliseconds of a nanosecond

using Times = std::vector<std::vector<schedule::Timing>>;

// Returns the times of a replica's pipeline ranks since `origin`, with `scale` units per
// nanosecond.
Times replica_times(const training::ParallelSizes& sizes, std::uint32_t replica,
                    const std::vector<std::vector<TimePoint>>& of_step, TimePoint origin,
                    double scale) {
  const auto at = [&](TimePoint time) {
    return static_cast<double>((time - origin).count()) * scale;
  };
  Times times;
  for (std::uint32_t pipeline = 0; pipeline < sizes.pp; ++pipeline) {
    const std::vector<TimePoint>& points = of_step[sizes.rank_of(pipeline, replica)];
    std::vector<schedule::Timing>& rank = times.emplace_back();
    for (std::size_t i = 0; i + 3 < points.size(); i += 2)
      rank.push_back({.begin = at(points[i]), .end = at(points[i + 1])});
  }
  return times;
}

}  // namespace

void StepTraces::keep(std::uint64_t step, const training::TrainingRank::Step& measured) {
  if (config_.trace_file.empty() && config_.picture.empty()) return;
  Kept kept{.step = step, .times = {}};
  for (const training::Measured& operation : measured.operations) {
    kept.times.push_back(operation.begin);
    kept.times.push_back(operation.end);
  }
  kept.times.insert(kept.times.end(), {measured.begin, measured.computed, measured.end});
  steps_.push_back(std::move(kept));
  if (steps_.size() > kStepsKept) steps_.pop_front();
}

Result<StepTraces::AllTimes> StepTraces::gather(collective::ProcessGroup* group) const {
  const training::ParallelSizes& sizes = rank_.options().sizes;
  std::vector<std::uint32_t> everyone(sizes.ranks());
  std::iota(everyone.begin(), everyone.end(), 0U);
  const collective::Team team(group, everyone);
  AllTimes all;
  for (const Kept& kept : steps_) {
    std::vector<std::vector<TimePoint>>& of_step = all.emplace_back();
    std::vector<std::span<std::byte>> parts;
    for (const std::uint32_t rank : everyone) {
      const training::Place place = training::place_of(sizes, rank);
      of_step.emplace_back(2 * rank_.program().ranks[place.pipeline].operations.size() + 3);
    }
    of_step[rank_.place().rank] = kept.times;
    for (std::vector<TimePoint>& times : of_step)
      parts.push_back(std::as_writable_bytes(std::span(times)));
    WSYNC_TRY(collective::all_gather(team, parts, now() + rank_.options().deadline));
  }
  return all;
}

Result<> StepTraces::write(collective::ProcessGroup* group) const {
  if (config_.trace_file.empty() && config_.picture.empty()) return {};
  if (steps_.empty()) {
    if (rank_.place().rank == 0)
      log_warning(
          "trace_file, picture: nothing is drawn, because no step has ended (since a rank was "
          "replaced)");
    return {};
  }
  const auto times = WSYNC_TRY(gather(group));
  if (rank_.place().rank != 0) return {};
  if (!config_.trace_file.empty()) WSYNC_TRY(write_trace(times));
  return config_.picture.empty() ? Result<>() : write_picture(times);
}

Result<> StepTraces::write_trace(const AllTimes& all) const {
  const training::ParallelSizes& sizes = rank_.options().sizes;
  std::vector<trace::ProcessTrace> processes;
  for (std::uint32_t rank = 0; rank < sizes.ranks(); ++rank) {
    const training::Place place = training::place_of(sizes, rank);
    processes.push_back({.name = fmt::format("trainer rank {} (PP{}, replica {})", rank,
                                             place.pipeline, place.replica),
                         .pid = rank + 1,
                         .spans = {}});
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    for (std::uint32_t replica = 0; replica < sizes.dp; ++replica) {
      const Times times = replica_times(sizes, replica, all[i], TimePoint{}, 1);
      const auto spans = schedule::schedule_spans({.program = rank_.program(), .times = times}, 1);
      for (std::uint32_t pipeline = 0; pipeline < sizes.pp; ++pipeline) {
        std::vector<trace::Span>& to = processes[sizes.rank_of(pipeline, replica)].spans;
        to.insert(to.end(), spans[pipeline].begin(), spans[pipeline].end());
      }
    }
    for (std::uint32_t rank = 0; rank < sizes.ranks(); ++rank) {
      const std::vector<TimePoint>& points = all[i][rank];
      const TimePoint begin = points[points.size() - 3];
      const TimePoint computed = points[points.size() - 2];
      const TimePoint end = points.back();
      const trace::Arg step{.name = "step", .value = static_cast<std::int64_t>(steps_[i].step)};
      const std::string number = std::to_string(steps_[i].step);
      processes[rank].spans.push_back({.name = "step " + number,
                                       .lane = "steps",
                                       .category = trace::Category::kStep,
                                       .begin = begin,
                                       .end = end,
                                       .label = number,
                                       .args = {step}});
      processes[rank].spans.push_back({.name = "update of step " + number,
                                       .lane = "update",
                                       .category = trace::Category::kStep,
                                       .begin = computed,
                                       .end = end,
                                       .label = number,
                                       .args = {step}});
    }
  }
  return trace::write_chrome_trace(config_.trace_file + ".json", processes);
}

Result<> StepTraces::write_picture(const AllTimes& all) const {
  const training::ParallelSizes& sizes = rank_.options().sizes;
  TimePoint origin = all.back()[0][all.back()[0].size() - 3];
  for (const std::vector<TimePoint>& points : all.back())
    origin = std::min(origin, points[points.size() - 3]);
  const Times times = replica_times(sizes, 0, all.back(), origin, kMillisecond);
  const schedule::TimedProgram timed{.program = rank_.program(), .times = times};
  const schedule::Shape& shape = rank_.options().schedule.shape;
  return trace::write_text_file(
      config_.picture,
      schedule::schedule_svg(
          timed, timed,
          {.title = fmt::format("Step {} as measured: {} pipeline ranks, {} chunks each, {} "
                                "micro-batches{}",
                                steps_.back().step, shape.pp, shape.vpp, shape.microbatches,
                                rank_.options().schedule.overlap ? ", overlapped" : ""),
           .subtitle = fmt::format("{}{} processes on {} processors",
                                   sizes.dp > 1 ? fmt::format("replica 0 of {}; ", sizes.dp) : "",
                                   sizes.ranks(), ::sysconf(_SC_NPROCESSORS_ONLN)),
           .unit = "ms"}));
}

}  // namespace wsync::cli
