#include "bench/pipeline/pipeline_bench.h"

#include <algorithm>
#include <cmath>
#include <poll.h>

#include "bench/scale/pipeline_flows.h"
#include "shared/base/format.h"
#include "shared/config/units.h"

namespace wsync::bench {
namespace {

Result<> not_interrupted(const Interrupt& interrupt) {
  pollfd asked{.fd = interrupt.fd(), .events = POLLIN, .revents = 0};
  if (::poll(&asked, 1, 0) > 0) return fail(ErrorCode::kCancelled, "interrupted");
  return {};
}

// Cost of one bucket of full size on a lane of its stage.
struct LaneCost {
  double seconds = 0;  // without other stages
  double cpu_s = 0;
};

// `lanes` lanes ran in parallel and moved `buckets` buckets in `taken`, the same number per lane.
LaneCost lane_cost(const Taken& taken, double buckets, std::uint32_t lanes, double cores) {
  const double cpu = taken.cpu_s / buckets;
  const double beside = taken.wall_s * lanes / buckets;
  return {.seconds = std::max(cpu, beside * std::min(1.0, cores / lanes)), .cpu_s = cpu};
}

HostPipelineCase summed_up(HostPipelineCase made) {
  const auto over = [&](auto value) {
    std::vector<double> values;
    for (const HostPipelineRound& round : made.rounds) values.push_back(value(round));
    return spread_of(values);
  };
  using Round = HostPipelineRound;
  made.h2d_s = over([](const Round& r) { return r.h2d.wall_s; });
  made.broadcast_s = over([](const Round& r) { return r.broadcast.wall_s; });
  made.reload_s = over([](const Round& r) { return r.reload.wall_s; });
  made.contention = over([](const Round& r) { return bench::contention(r); });
  made.hand_over_s = over([&](const Round& r) {
    return bench::hand_over_s(r.hand_overs, made.buckets, made.options.devices);
  });
  made.two_s = over([](const Round& r) { return r.two_s; });
  made.three_s = over([](const Round& r) { return r.three_s; });
  made.two_ratio = over([](const Round& r) { return r.predicted_two_s / r.two_s; });
  made.three_ratio = over([](const Round& r) { return r.predicted_three_s / r.three_s; });
  return made;
}

Result<HostPipelineRound> measure_round(HostPipeline& pipeline, const HostPipelineOptions& options,
                                        std::uint32_t cores, unsigned number) {
  HostPipelineRound round;
  const auto into = [](Taken& to, Result<Taken> taken) -> Result<> {
    if (!taken) return fail(std::move(taken).error());
    to = *taken;
    return {};
  };
  Taken two;
  Taken three;
  const std::function<Result<>()> parts[] = {
      [&] { return into(round.h2d, pipeline.h2d()); },
      [&] { return into(round.broadcast, pipeline.broadcasts()); },
      [&] { return into(round.reload, pipeline.reloads()); },
      // Over links the stages do not slow each other down, so this part is skipped.
      [&] {
        return options.rates.given() ? Result<>() : into(round.together, pipeline.together());
      },
      [&] { return into(round.hand_overs, pipeline.hand_overs()); },
      [&] { return into(two, pipeline.update(Stages::kTwo)); },
      [&] { return into(three, pipeline.update(Stages::kThree)); }};
  for (std::size_t i = 0; i < std::size(parts); ++i)
    WSYNC_TRY(parts[(i + number) % std::size(parts)]());
  round.two_s = two.wall_s;
  round.three_s = three.wall_s;
  for (auto& [to, stages] : {std::pair{&round.predicted_two_s, Stages::kTwo},
                             std::pair{&round.predicted_three_s, Stages::kThree}}) {
    const auto predicted = WSYNC_TRY(predict_update(round, options, cores, stages));
    *to = predicted;
  }
  return round;
}

}  // namespace

std::string case_label(const HostPipelineOptions& options) {
  std::string label = fmt::format("{} device{}", options.devices, options.devices == 1 ? "" : "s");
  if (!options.rates.given()) return label + ", copies by cores";
  const auto rate = [](double bytes_per_second) {
    return config::format_size(static_cast<std::uint64_t>(bytes_per_second));
  };
  return label + fmt::format(", links {}/{}/{}", rate(options.rates.h2d),
                             rate(options.rates.broadcast), rate(options.rates.reload));
}

bool HostPipelineCase::met() const noexcept {
  return std::abs(two_ratio.median - 1) <= kPredictionTarget &&
         std::abs(three_ratio.median - 1) <= kPredictionTarget;
}

double hand_over_s(const Taken& hand_overs, std::uint64_t buckets, std::uint32_t devices) {
  const std::uint64_t rounds = (buckets + devices - 1) / devices;
  const std::uint64_t broadcasts = devices == 1 ? 0 : buckets;
  return hand_overs.wall_s / static_cast<double>(rounds + broadcasts + 1);
}

double contention(const HostPipelineRound& alone) {
  const double one_by_one = alone.h2d.cpu_s + alone.broadcast.cpu_s + alone.reload.cpu_s;
  return one_by_one > 0 ? std::max(1.0, alone.together.cpu_s / one_by_one) : 1;
}

Result<double> predict_update(const HostPipelineRound& alone, const HostPipelineOptions& options,
                              std::uint32_t cores, Stages stages) {
  const std::uint32_t n = options.devices;
  const auto bytes = static_cast<double>(options.bytes);
  const auto buffer = static_cast<double>(options.buffer_bytes);
  const double buckets = bytes / buffer;  // the last bucket counts with its actual size
  const bool paced = options.rates.given();
  double here = paced ? std::max(cores, n) : cores;
  if (!paced && n >= cores) {
    here = 0;
    for (const Taken* stage : {&alone.h2d, &alone.broadcast, &alone.reload})
      if (stage->wall_s > 0) here = std::max(here, stage->cpu_s / stage->wall_s);
  }
  const double slower = paced ? 1 : contention(alone);
  const auto beside_others = [slower](LaneCost cost) {
    return LaneCost{.seconds = cost.seconds * slower, .cpu_s = cost.cpu_s * slower};
  };
  const LaneCost h2d = beside_others(lane_cost(alone.h2d, buckets, n, here));
  const LaneCost broadcast = beside_others(
      {.seconds = alone.broadcast.wall_s / buckets, .cpu_s = alone.broadcast.cpu_s / buckets});
  const LaneCost reload = beside_others(lane_cost(alone.reload, buckets * n, n, here));
  SharedLinks links;
  const LinkId processor = links.add("cores", here);
  const LinkId ring = links.add("broadcasts", n == 1 ? 1 : 1 / broadcast.seconds);
  std::vector<LinkId> devices;
  std::vector<LinkId> engines;
  for (std::uint32_t d = 0; d < n; ++d) {
    devices.push_back(links.add(fmt::format("H2D {}", d), 1 / h2d.seconds));
    engines.push_back(links.add(fmt::format("engine {}", d), 1 / reload.seconds));
  }
  const auto count = static_cast<std::uint64_t>(std::ceil(buckets));
  const double late = hand_over_s(alone.hand_overs, count, n);
  const auto flow = [&](LinkId lane, const LaneCost& cost, std::uint64_t bucket, double fixed) {
    const double left = bytes - static_cast<double>(bucket) * buffer;
    Flow made{.fixed_s = fixed, .work = std::min(1.0, left / buffer), .demands = {{.link = lane}}};
    if (cost.cpu_s > 0) made.demands.push_back({.link = processor, .share = cost.cpu_s});
    return made;
  };
  const PipelineFlows flows{
      .h2d = [&](std::uint32_t device,
                 std::uint64_t b) { return flow(devices[device], h2d, b, late); },
      .broadcast = [&](std::uint64_t b) { return flow(ring, broadcast, b, 0); },
      .reload = [&](std::uint32_t engine,
                    std::uint64_t b) { return flow(engines[engine], reload, b, late); }};
  reload::PipelineShape shape{
      .devices = n, .buckets = count, .ipc_slots = 2, .direct = n == 1, .engines = {}};
  for (std::uint32_t d = 0; d < n; ++d)
    shape.engines.push_back({.engine = reload::EngineId{d}, .device = reload::DeviceIndex{d}});
  const auto made = WSYNC_TRY(simulate_pipeline(shape, stages, flows, std::move(links)));
  return made.prediction.seconds;
}

Result<PipelineBenchResult> run_pipeline_bench(const PipelineBenchOptions& options,
                                               const Interrupt& interrupt,
                                               const OnPipelineProgress& on_progress) {
  const auto busy = WSYNC_TRY(busy_with_others(interrupt));
  PipelineBenchResult made{
      .machine = this_machine(), .options = options, .cases = {}, .others_busy = busy};
  CpuLoad load;
  for (const HostPipelineOptions& wanted : options.cases) {
    const std::string label = case_label(wanted);
    on_progress(label, 0, options.rounds);
    const auto pipeline = HostPipeline::create(wanted);
    if (!pipeline) return fail(pipeline.error().with_context(label));
    HostPipelineCase one{.options = wanted, .buckets = (*pipeline)->buckets()};
    // The first round warms up everything and is not counted.
    for (unsigned number = 0; number <= options.rounds; ++number) {
      WSYNC_TRY(not_interrupted(interrupt));
      on_progress(label, number, options.rounds + 1);
      const auto round = measure_round(**pipeline, wanted, made.machine.cores, number);
      if (!round) return fail(round.error().with_context(label));
      if (number > 0) one.rounds.push_back(*round);
    }
    one.checked_bytes = (*pipeline)->checked_bytes();
    made.cases.push_back(summed_up(std::move(one)));
  }
  made.stolen = load.since_last().stolen;
  return made;
}

}  // namespace wsync::bench
