#include "bench/schedule/schedule_bench.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/process_group/memory/host_segment.h"

namespace wsync::bench {
namespace {

using collective::memory::HostSegment;
using training::TrainingOptions;

constexpr std::uint32_t kHeadDim = 32;
constexpr std::uint32_t kExpertsPerToken = 2;
constexpr std::size_t kSequence = 64;  // maximum tokens

bool overlaps(CaseKind kind) { return kind == CaseKind::kOverlap; }
bool has_link(CaseKind kind) { return kind != CaseKind::kNoLink; }

TrainingOptions training_of(const ScheduleBenchOptions& options, bool overlap) {
  const std::size_t sequence = std::min(kSequence, options.tokens);
  return {.spec = model_of(options),
          .sizes = options.sizes,
          .schedule = {.shape = {.pp = options.sizes.pp,
                                 .vpp = options.sizes.vpp,
                                 .microbatches = options.microbatches},
                       .overlap = overlap},
          .offload = false,
          .optimizer = {},
          .sequences = options.tokens / sequence,
          .sequence = sequence};
}

Result<> check(const ScheduleBenchOptions& options) {
  const auto refused = [](std::string why) {
    return fail(ErrorCode::kInvalidInput, std::move(why));
  };
  if (options.steps == 0 || options.warmup == 0)
    return refused("expected at least one measured step and one warm-up step of each case");
  if (options.hidden == 0 || options.hidden % (2 * kHeadDim) != 0)
    return refused(
        fmt::format("hidden size {}: expected a multiple of {}, because pairs of heads of {} "
                    "elements share a key",
                    options.hidden, 2 * kHeadDim, kHeadDim));
  if (options.tokens == 0 || (options.tokens > kSequence && options.tokens % kSequence != 0))
    return refused(
        fmt::format("micro-batches of {0} tokens: expected 1 to {1}, or a multiple of {1}",
                    options.tokens, kSequence));
  if (!(options.link.dispatch_share > 0) || !std::isfinite(options.link.dispatch_share))
    return refused(fmt::format("the share of a dispatch is {}, expected a number above 0",
                               options.link.dispatch_share));
  WSYNC_TRY(training::check_training(training_of(options, true)));
  WSYNC_TRY(training::check_training(training_of(options, false)));
  if (options.sizes.ranks() > collective::memory::kHostRankCount)
    return refused(fmt::format("{}, expected at most {}", counted(options.sizes.ranks(), "rank"),
                               collective::memory::kHostRankCount));
  return {};
}

// Checks the memory for activations, which are the largest part.
Result<> check_memory(const ScheduleBenchOptions& options) {
  const std::uint64_t layer =
      4 * training::LayerRun::floats(model_of(options), options.tokens,
                                     std::min(kSequence, options.tokens), options.sizes.ep);
  std::uint64_t bytes = 0;
  for (const CaseKind kind : kCaseKinds) {
    const auto program = WSYNC_TRY(training::plan_training(training_of(options, overlaps(kind))));
    for (const schedule::RankProgram& rank : program.ranks)
      bytes += training::max_activations(rank) * layer * options.sizes.dp;
  }
  return require_memory(bytes,
                        fmt::format("the activations of {} processes", options.sizes.ranks()));
}

// Content of a rank's last line.
struct RankResult {
  collective::LinkSpeed link;
  std::vector<std::vector<StepSample>> samples;  // one list per case
};
RankResult result_of(const nlohmann::json& object) {
  RankResult result;
  result.link.latency =
      std::chrono::nanoseconds(object.at("link").at("latency_ns").get<std::int64_t>());
  result.link.bytes_per_second = object.at("link").at("bytes_per_second").get<double>();
  for (const nlohmann::json& list : object.at("samples")) {
    std::vector<StepSample>& samples = result.samples.emplace_back();
    for (const nlohmann::json& sample : list) samples.push_back(step_sample_of(sample));
  }
  return result;
}

Result<std::vector<RankResult>> run_ranks(const ScheduleBenchOptions& options,
                                          const Interrupt& interrupt, const OnSteps& on_steps) {
  const std::uint32_t ranks = options.sizes.ranks();
  const auto memory = WSYNC_TRY(HostSegment::create({.size = ranks}));
  const auto linked = WSYNC_TRY(HostSegment::create({.size = ranks}));
  const RankTask task{.overlap = training_of(options, true),
                      .no_overlap = training_of(options, false),
                      .link = options.link,
                      .warmup = options.warmup,
                      .steps = options.steps,
                      .memory_fd = memory.descriptor(),
                      .linked_fd = linked.descriptor()};
  const unsigned total =
      options.warmup + unsigned{kCaseCount} - 1 + options.steps * unsigned{kCaseCount};
  std::vector<std::string> last(ranks);
  WSYNC_TRY(run_processes(
      ranks,
      {.body = [&task](std::uint32_t rank,
                       const LineWriter& out) { return run_rank(task, rank, out); },
       .on_line =
           [&](std::uint32_t rank, std::string line) {
             last[rank] = std::move(line);
             if (last[rank].starts_with("{\"step\""))
               on_steps(nlohmann::json::parse(last[rank]).at("step").get<unsigned>(), total);
           },
       .on_failure =
           [&](const Error& error) {
             memory.abort(error);
             linked.abort(error);
           }},
      interrupt));
  std::vector<RankResult> results;
  results.reserve(ranks);
  for (const std::string& line : last) results.push_back(result_of(nlohmann::json::parse(line)));
  return results;
}

// Returns the step whose time is nearest to the median.
std::size_t middle_of(const std::vector<double>& steps) {
  const double median = spread_of(steps).median;
  const auto nearest = std::min_element(steps.begin(), steps.end(), [&](double a, double b) {
    return std::abs(a - median) < std::abs(b - median);
  });
  return static_cast<std::size_t>(nearest - steps.begin());
}

Result<ScheduleCase> compare_case(CaseKind kind, const ScheduleBenchOptions& options,
                                  const CaseSamples& samples,
                                  const schedule::OperationCosts& costs) {
  auto program = WSYNC_TRY(training::plan_training(training_of(options, overlaps(kind))));
  auto predicted = WSYNC_TRY(schedule::simulate(program, costs, {.lockstep = false}));
  ScheduleCase one{.kind = kind,
                   .program = std::move(program),
                   .costs = costs,
                   .predicted = std::move(predicted)};
  std::vector<double> exposed;
  std::vector<double> ratios;
  for (std::size_t step = 0; step < samples.front().size(); ++step) {
    one.steps_ms.push_back(step_time(samples, step));
    exposed.push_back(exposed_time(one.program, options.sizes, samples, step));
    ratios.push_back(one.steps_ms.back() / one.predicted.makespan);
  }
  one.step_ms = spread_of(one.steps_ms);
  one.exposed_ms = spread_of(exposed);
  one.ratio = spread_of(ratios);
  one.times = timings_of(options.sizes, samples, middle_of(one.steps_ms), 0);
  return one;
}

}  // namespace

moe::ModelSpec model_of(const ScheduleBenchOptions& options) {
  return {.vocabulary = 256,
          .hidden = options.hidden,
          .layers = options.sizes.stages(),
          .heads = options.hidden / kHeadDim,
          .key_value_heads = options.hidden / (2 * kHeadDim),
          .head_dim = kHeadDim,
          .experts = options.experts,
          .experts_per_token = kExpertsPerToken,
          .expert_hidden = options.hidden,
          .max_positions = static_cast<std::uint32_t>(kSequence)};
}

Result<std::vector<ScheduleCase>> compare_cases(const ScheduleBenchOptions& options,
                                                const std::array<CaseSamples, kCaseCount>& samples,
                                                const collective::LinkSpeed& link,
                                                std::uint32_t cores) {
  const auto program = WSYNC_TRY(training::plan_training(training_of(options, false)));
  const CaseSamples& alone = samples[static_cast<std::size_t>(CaseKind::kNoLink)];
  std::vector<ScheduleCase> cases;
  for (std::size_t i = 0; i < kCaseCount; ++i) {
    const CaseKind kind = kCaseKinds[i];
    const schedule::OperationCosts costs = measured_costs(
        program, options.sizes, alone, has_link(kind) ? std::optional(link) : std::nullopt, cores);
    auto one = WSYNC_TRY(compare_case(kind, options, samples[i], costs));
    cases.push_back(std::move(one));
  }
  return cases;
}

Spread speed_up_of(const ScheduleCase& overlap, const ScheduleCase& no_overlap) {
  std::vector<double> values;
  values.reserve(overlap.steps_ms.size());
  for (std::size_t i = 0; i < overlap.steps_ms.size(); ++i)
    values.push_back(no_overlap.steps_ms[i] / overlap.steps_ms[i]);
  return spread_of(values);
}

Result<ScheduleBenchResult> run_schedule_bench(const ScheduleBenchOptions& options,
                                               const Interrupt& interrupt,
                                               const OnSteps& on_steps) {
  WSYNC_TRY(check(options));
  WSYNC_TRY(check_memory(options));
  ScheduleBenchResult result{
      .machine = this_machine(), .options = options, .model = model_of(options)};
  const auto busy = WSYNC_TRY(busy_with_others(interrupt));
  result.others_busy = busy;
  CpuLoad load;
  try {
    const auto ranks = WSYNC_TRY(run_ranks(options, interrupt, on_steps));
    result.stolen = load.since_last().stolen;
    result.link = ranks.front().link;
    std::array<CaseSamples, kCaseCount> samples;
    for (std::size_t i = 0; i < kCaseCount; ++i)
      for (const RankResult& rank : ranks) samples[i].push_back(rank.samples.at(i));
    auto cases = WSYNC_TRY(compare_cases(options, samples, result.link, result.machine.cores));
    result.cases = std::move(cases);
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("the output of a rank has an unexpected format: {}", error.what()));
  }
  const ScheduleCase& overlap = result.of(CaseKind::kOverlap);
  const ScheduleCase& no_overlap = result.of(CaseKind::kNoOverlap);
  result.speed_up = speed_up_of(overlap, no_overlap);
  result.predicted_speed_up = no_overlap.predicted.makespan / overlap.predicted.makespan;
  return result;
}

}  // namespace wsync::bench
