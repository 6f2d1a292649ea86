// The benchmark of the schedule: what it makes of samples whose costs are known, its forked ranks,
// and a run of it as small as it gets. No time is compared with anything that was measured.
#include "bench/schedule/schedule_bench.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <unistd.h>

#include "bench/schedule/metered_group.h"
#include "bench/schedule/processes.h"
#include "bench/schedule/report.h"
#include "shared/process_group/memory/host_segment.h"

namespace wsync::bench {
namespace {

using schedule::OperationCosts;
using schedule::OperationKind;
using schedule::Program;
using schedule::Timing;

constexpr std::uint64_t kBytes = 500'000;  // of an exchange
const collective::LinkSpeed kLink{.latency = std::chrono::microseconds(200),
                                  .bytes_per_second = 1e9};
constexpr double kOnLinkMs = 0.2 + 0.5;  // what that takes
constexpr std::uint32_t kCores = 4;      // for both lanes of two ranks

ScheduleBenchOptions small_options() {
  return {.microbatches = 3,
          .hidden = 64,
          .experts = 4,
          .tokens = 8,
          .link = {.latency = {}, .bytes_per_second = 1e9},
          .warmup = 1,
          .steps = 2};
}
Program program_of(bool overlap) {
  const ScheduleBenchOptions options = small_options();
  return training::plan_training(
             {.spec = model_of(options),
              .sizes = options.sizes,
              .schedule = {.shape = {.pp = 1, .vpp = 2, .microbatches = options.microbatches},
                           .overlap = overlap},
              .optimizer = {},
              .sequence = options.tokens})
      .value();
}
// Of operations alone; communication without a link.
OperationCosts costs() {
  return {.attention = 3,
          .mlp = 2,
          .head = 1.5,
          .attention_gradient = 4,
          .mlp_gradient = 5,
          .weight_gradient = 6,
          .dispatch = 0.5,
          .combine = 0.25};
}

TimePoint at(double milliseconds) {
  return TimePoint{1'000'000'000 + std::llround(1e6 * milliseconds)};
}
// What two replicas would have measured that run as the simulator says. Each communication is one
// exchange with `around` before it.
CaseSamples samples_of(const Program& program, const OperationCosts& costs, double around) {
  const auto simulated = schedule::simulate(program, costs, {.lockstep = false}).value();
  StepSample sample{
      .begin = at(0), .end = at(simulated.makespan), .operations = {}, .exchanges = {}};
  for (std::size_t i = 0; i < simulated.operations[0].size(); ++i) {
    const Timing& time = simulated.operations[0][i];
    sample.operations.push_back({at(time.begin), at(time.end)});
  }
  const auto& lane =
      program.ranks[0].lanes[static_cast<std::size_t>(schedule::Lane::kCommunication)];
  for (const std::uint32_t i : lane)
    sample.exchanges.push_back(
        {.time = {at(simulated.operations[0][i].begin + around), sample.operations[i].end},
         .processor = std::chrono::microseconds(20),
         .bytes = kBytes});
  return {{sample, sample}, {sample, sample}};
}

TEST(MeasuredCosts, AreThoseOfTheSamples) {
  const ScheduleBenchOptions options = small_options();
  const Program program = program_of(false);
  const CaseSamples samples = samples_of(program, costs(), 0.1);
  const OperationCosts found = measured_costs(program, options.sizes, samples, {}, kCores);
  for (double OperationCosts::* cost :
       {&OperationCosts::attention, &OperationCosts::mlp, &OperationCosts::head,
        &OperationCosts::attention_gradient, &OperationCosts::mlp_gradient,
        &OperationCosts::weight_gradient, &OperationCosts::dispatch, &OperationCosts::combine,
        &OperationCosts::pp_transfer, &OperationCosts::pair_factor})
    EXPECT_NEAR(found.*cost, costs().*cost, 1e-5);
}

TEST(MeasuredCosts, OnALinkAnExchangeTakesTheLinksTime) {
  const ScheduleBenchOptions options = small_options();
  const Program program = program_of(false);
  const CaseSamples samples = samples_of(program, costs(), 0.1);
  const OperationCosts found = measured_costs(program, options.sizes, samples, kLink, kCores);
  EXPECT_NEAR(found.dispatch, 0.1 + kOnLinkMs, 1e-5);
  EXPECT_NEAR(found.combine, 0.1 + kOnLinkMs, 1e-5);
  EXPECT_NEAR(found.attention, 3, 1e-5);
}

// Of computations the slowest replica counts, of exchanges the one that others waited for.
TEST(MeasuredCosts, ReplicasWaitForEachOther) {
  const ScheduleBenchOptions options = small_options();
  const Program program = program_of(false);
  CaseSamples samples = samples_of(program, costs(), 0.1);
  OperationCosts slower = costs();
  slower.attention += 1;
  slower.dispatch += 2;
  samples[1] = samples_of(program, slower, 0.1)[1];
  const OperationCosts found = measured_costs(program, options.sizes, samples, {}, kCores);
  EXPECT_NEAR(found.attention, 4, 1e-5);
  EXPECT_NEAR(found.dispatch, 0.5, 1e-5);
}

TEST(MeasuredCosts, AnOutlierIsNoCost) {
  const ScheduleBenchOptions options = small_options();
  const Program program = program_of(false);
  CaseSamples samples = samples_of(program, costs(), 0.1);
  OperationCosts disturbed = costs();
  disturbed.mlp = 100;
  for (std::vector<StepSample>& rank : samples) rank.push_back(rank.back());
  for (std::vector<StepSample>& rank : samples) rank[1] = samples_of(program, disturbed, 0.1)[0][0];
  const OperationCosts found = measured_costs(program, options.sizes, samples, {}, kCores);
  EXPECT_NEAR(found.mlp, costs().mlp, 1e-5);
}

// 0.1 ms around an exchange and 0.02 ms in it, four communications to a pair of 20 ms.
TEST(MeasuredCosts, WithoutCoresForBothLanesCommunicationTakesFromComputation) {
  const ScheduleBenchOptions options = small_options();
  const Program program = program_of(false);
  const CaseSamples samples = samples_of(program, costs(), 0.1);
  const OperationCosts found = measured_costs(program, options.sizes, samples, {}, kCores - 1);
  EXPECT_NEAR(found.pair_factor, 1 + 4 * 0.12 / 20, 1e-6);
}

TEST(Bandwidth, IsWhatADispatchNeeds) {
  const auto latency = std::chrono::microseconds(250);
  const auto found = bandwidth_for({.exchanges = 2, .bytes = 1e6}, latency, 5, 0.5);
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(*found, 1e6 / 0.002, 1);
  const auto refused = bandwidth_for({.exchanges = 2, .bytes = 1e6}, latency, 1, 0.5);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidInput);
  EXPECT_NE(refused.error().message().find("0.500 ms"), std::string::npos);
}

ScheduleBenchResult made_up_result() {
  ScheduleBenchResult result{
      .options = small_options(), .model = model_of(small_options()), .link = kLink};
  OperationCosts linked = costs();
  linked.dispatch = linked.combine = 0.1 + kOnLinkMs;
  const std::array samples{samples_of(program_of(true), linked, 0.1),
                           samples_of(program_of(false), linked, 0.1),
                           samples_of(program_of(false), costs(), 0.1)};
  result.cases = compare_cases(result.options, samples, kLink, kCores).value();
  const ScheduleCase& overlap = result.of(CaseKind::kOverlap);
  const ScheduleCase& no_overlap = result.of(CaseKind::kNoOverlap);
  result.speed_up = speed_up_of(overlap, no_overlap);
  result.predicted_speed_up = no_overlap.predicted.makespan / overlap.predicted.makespan;
  return result;
}

// Ranks that run as the simulator says are as fast as predicted, and wait as long.
TEST(CompareCases, RanksLikeTheSimulatorHaveARatioOfOne) {
  const ScheduleBenchResult result = made_up_result();
  ASSERT_EQ(result.cases.size(), kCaseCount);
  for (const ScheduleCase& one : result.cases) {
    EXPECT_NEAR(one.ratio.median, 1, 1e-6) << case_name(one.kind);
    EXPECT_NEAR(one.exposed_ms.median, one.predicted.exposed(), 1e-3) << case_name(one.kind);
  }
  EXPECT_NEAR(result.speed_up.median, result.predicted_speed_up, 1e-6);
  EXPECT_GT(result.predicted_speed_up, 1);
  // Three micro-batches on two chunks: 12 cells without overlap, each with four exchanges.
  const double exposed = 6 * 4 * (0.1 + kOnLinkMs);
  EXPECT_NEAR(result.of(CaseKind::kNoOverlap).predicted.exposed(), exposed, 1e-6);
  EXPECT_LT(result.of(CaseKind::kOverlap).predicted.exposed(), exposed);
}

TEST(ScheduleReport, HasACaseForEachAndAPictureOfBoth) {
  const ScheduleBenchResult result = made_up_result();
  const nlohmann::json json = to_json(result);
  ASSERT_EQ(json.at("cases").size(), kCaseCount);
  EXPECT_EQ(json["cases"][0].at("case"), "overlap");
  EXPECT_NEAR(json["cases"][1].at("ratio").at("median").get<double>(), 1, 1e-6);
  EXPECT_EQ(json["cases"][2].at("steps_ms").size(), 2U);
  EXPECT_NEAR(json.at("speed_up_ratio").get<double>(), 1, 1e-6);
  EXPECT_NE(to_text(result).find("1.000"), std::string::npos);
  const std::string svg = to_svg(result);
  for (const char* name : {"overlap, measured", "overlap, simulated", "no overlap, measured"})
    EXPECT_NE(svg.find(name), std::string::npos);
  const auto processes = to_trace(result);
  ASSERT_EQ(processes.size(), 4U);
  EXPECT_EQ(processes[3].name, "no overlap, simulated");
  EXPECT_EQ(processes[0].spans.size(), program_of(true).ranks[0].operations.size());
}

TEST(Samples, AreWrittenAndRead) {
  const StepSample sample = samples_of(program_of(false), costs(), 0.1)[0][0];
  const StepSample read = step_sample_of(to_json(sample));
  EXPECT_EQ(read.begin, sample.begin);
  EXPECT_EQ(read.end, sample.end);
  ASSERT_EQ(read.operations.size(), sample.operations.size());
  EXPECT_EQ(read.operations.back().end, sample.operations.back().end);
  ASSERT_EQ(read.exchanges.size(), sample.exchanges.size());
  EXPECT_EQ(read.exchanges.back().bytes, kBytes);
  EXPECT_EQ(read.exchanges.back().processor, sample.exchanges.back().processor);
  EXPECT_THROW((void)step_sample_of(nlohmann::json::object()), nlohmann::json::exception);
  nlohmann::json cut = to_json(sample);
  cut["exchanges"].erase(cut["exchanges"].size() - 1);
  EXPECT_THROW((void)step_sample_of(cut), nlohmann::json::exception);
}

TEST(MeteredGroup, WritesDownEachExchange) {
  const auto segment = collective::memory::HostSegment::create({.size = 2}).value();
  MeteredGroup first(segment.attach(0).value());
  MeteredGroup second(segment.attach(1).value());
  std::array<std::byte, 10> few{};
  std::array<std::byte, 30> many{};
  const TimePoint deadline = now() + std::chrono::seconds(60);
  const std::jthread other([&] {
    const collective::Send send{.to = 0, .bytes = many};
    std::array<std::byte, 10> got{};
    const collective::Receive receive{.from = 0, .bytes = got};
    EXPECT_TRUE(second.exchange({&send, 1}, {&receive, 1}, deadline).has_value());
  });
  std::array<std::byte, 30> got{};
  const collective::Send send{.to = 1, .bytes = few};
  const collective::Receive receive{.from = 1, .bytes = got};
  ASSERT_TRUE(first.exchange({&send, 1}, {&receive, 1}, deadline).has_value());
  const std::vector<Exchange> exchanges = first.take();
  ASSERT_EQ(exchanges.size(), 1U);
  EXPECT_EQ(exchanges[0].bytes, 30U);
  EXPECT_GE(exchanges[0].time.end, exchanges[0].time.begin);
  EXPECT_TRUE(first.take().empty());
}

struct Heard {
  std::vector<std::string> lines;
  std::vector<Error> failures;
};
Result<> run(std::uint32_t count, Heard& heard,
             std::function<Result<>(std::uint32_t, const LineWriter&)> body) {
  const auto interrupt = Interrupt::create().value();
  heard.lines.resize(count);
  return run_processes(
      count,
      {.body = std::move(body),
       .on_line = [&](std::uint32_t rank,
                      std::string line) { heard.lines[rank] += std::move(line) + "|"; },
       .on_failure = [&](const Error& error) { heard.failures.push_back(error); }},
      interrupt);
}

TEST(Processes, TellTheirLauncher) {
  Heard heard;
  const std::string large(300'000, 'x');
  const auto done = run(3, heard, [&](std::uint32_t rank, const LineWriter& out) -> Result<> {
    WSYNC_TRY(out.write("rank " + std::to_string(rank)));
    return out.write(large);
  });
  ASSERT_TRUE(done.has_value());
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(heard.lines[rank], "rank " + std::to_string(rank) + "|" + large + "|");
  EXPECT_TRUE(heard.failures.empty());
}

TEST(Processes, TheFirstFailureIsToldOnce) {
  Heard heard;
  const auto done = run(2, heard, [](std::uint32_t, const LineWriter&) -> Result<> {
    return fail(ErrorCode::kRefused, "no; it is 2");
  });
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), ErrorCode::kRefused);
  EXPECT_EQ(done.error().message(), "no; it is 2");
  EXPECT_EQ(heard.failures.size(), 1U);
}

TEST(Processes, OneThatDiesIsNamed) {
  Heard heard;
  const auto done = run(2, heard, [](std::uint32_t rank, const LineWriter&) -> Result<> {
    if (rank == 1) ::raise(SIGKILL);
    return {};
  });
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(done.error().message(), "rank 1 was killed by signal 9");
}

TEST(Processes, ASignalEndsThemAll) {
  Heard heard;
  const pid_t launcher = ::getpid();
  const auto done = run(2, heard, [launcher](std::uint32_t rank, const LineWriter&) -> Result<> {
    if (rank == 0) ::kill(launcher, SIGINT);
    for (;;) ::pause();
  });
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), ErrorCode::kCancelled);
}

Result<ScheduleBenchResult> run_bench(const ScheduleBenchOptions& options) {
  const auto interrupt = Interrupt::create().value();
  return run_schedule_bench(options, interrupt, [](unsigned, unsigned) {});
}

TEST(ScheduleBench, RealRanksAreMeasured) {
  const auto result = run_bench(small_options());
  ASSERT_TRUE(result.has_value()) << result.error().message();
  ASSERT_EQ(result->cases.size(), kCaseCount);
  for (const ScheduleCase& one : result->cases) {
    EXPECT_EQ(one.steps_ms.size(), 2U);
    EXPECT_GT(one.step_ms.min, 0);
    EXPECT_GT(one.predicted.makespan, 0);
    EXPECT_TRUE(std::isfinite(one.ratio.median));
  }
  EXPECT_EQ(result->link.bytes_per_second, 1e9);
}

TEST(ScheduleBench, WithoutABandwidthItSetsOne) {
  ScheduleBenchOptions options = small_options();
  options.link.bytes_per_second.reset();
  const auto result = run_bench(options);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_GT(result->link.bytes_per_second, 0);
  // What every rank finds out, the launcher hears.
  options.link.latency = std::chrono::seconds(1);
  const auto refused = run_bench(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidInput);
}

TEST(ScheduleBench, SizesThatDoNotGoTogetherAreRefused) {
  const auto refused = [](const std::function<void(ScheduleBenchOptions&)>& change) {
    ScheduleBenchOptions options = small_options();
    change(options);
    const auto result = run_bench(options);
    return !result && result.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(refused([](auto& options) { options.sizes.ep = 1; }));
  EXPECT_TRUE(refused([](auto& options) { options.sizes.vpp = 1; }));
  EXPECT_TRUE(refused([](auto& options) { options.sizes.dp = 3; }));
  EXPECT_TRUE(refused([](auto& options) { options.sizes.dp = 512; }));
  EXPECT_TRUE(refused([](auto& options) { options.microbatches = 0; }));
  EXPECT_TRUE(refused([](auto& options) { options.hidden = 100; }));
  EXPECT_TRUE(refused([](auto& options) { options.experts = 3; }));
  EXPECT_TRUE(refused([](auto& options) { options.tokens = 0; }));
  EXPECT_TRUE(refused([](auto& options) { options.tokens = 300; }));
  EXPECT_TRUE(refused([](auto& options) { options.steps = 0; }));
  EXPECT_TRUE(refused([](auto& options) { options.warmup = 0; }));
  EXPECT_TRUE(refused([](auto& options) { options.link.dispatch_share = 0; }));
}

}  // namespace
}  // namespace wsync::bench
