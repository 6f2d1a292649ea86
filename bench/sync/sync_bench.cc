#include "bench/sync/sync_bench.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "bench/harness/memory.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"

namespace wsync::bench {
namespace {

constexpr unsigned kWarmUps = 3;       // pushes until every arena and every buffer has been used
constexpr unsigned kCalibrations = 5;  // repetitions of each way to copy the floor
constexpr std::uint64_t kProbeBytes = 256 * limits::kMiB;
constexpr unsigned kProbes = 5;
// pause, load, commit, resume: a few messages each
constexpr std::uint64_t kHandOversNs = 500'000;

// Bytes per second of a streaming copy on every core: the maximum of several copies.
double measure_copy_rate(std::uint64_t bytes, unsigned cores) {
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes, std::byte{2});
  double best = 0;
  for (unsigned probe = 0; probe < kProbes; ++probe) {
    const TimePoint begin = now();
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < cores; ++i)
        threads.emplace_back([&, i] {
          const std::uint64_t at = bytes / cores * i;
          const std::uint64_t part = i + 1 == cores ? bytes - at : bytes / cores;
          copy_streaming(std::span(to).subspan(at, part), std::span(from).subspan(at, part));
        });
    }
    best = std::max(best, static_cast<double>(bytes) / seconds(now() - begin));
  }
  return best;
}

std::vector<double> column(const SyncCase& done, const std::function<double(const Round&)>& of) {
  std::vector<double> values;
  for (const Round& round : done.rounds) values.push_back(of(round));
  return values;
}

CopiesPerByte by_bytes(const CopiedBytes& copied, const SyncCase& done) {
  const std::uint64_t model = done.expected_bytes / done.engines;
  const auto share = [](std::uint64_t bytes, std::uint64_t of) {
    return static_cast<double>(bytes) / static_cast<double>(of);
  };
  return {.snapshot = share(copied.snapshot, model),
          .sent = share(copied.sent, model),
          .received = share(copied.received, model),
          .h2d = share(copied.h2d, model),
          .broadcast = share(copied.broadcast, model * std::max(1U, done.devices)),
          .loaded = share(copied.loaded, done.expected_bytes)};
}

class Case {
 public:
  Case(const SyncBenchOptions& options, unsigned engines, std::uint64_t buffer_bytes,
       const Interrupt& interrupt, cli::ChildProcesses& children,
       std::function<void(std::string_view)> on_step)
      : options_(options),
        interrupt_(interrupt),
        children_(children),
        on_step_(std::move(on_step)) {
    result_.engines = engines;
    result_.adopt = options.adopt;
    result_.devices = options.devices;
    result_.tcp = options.tcp;
    result_.buffer_bytes = buffer_bytes;
    result_.expected_bytes = options.bytes * engines;
  }
  static unsigned steps(const SyncBenchOptions& options) { return kWarmUps + options.rounds + 2; }

  [[nodiscard]] Result<SyncCase> run(const Machine& machine, double copy_rate) {
    const auto busy = WSYNC_TRY(busy_with_others(interrupt_));
    result_.others_busy = busy;
    result_.predicted_ns =
        static_cast<double>(kHandOversNs) +
        (result_.adopt ? 0 : 1e9 * static_cast<double>(result_.expected_bytes) / copy_rate);
    const std::string directory =
        fmt::format("{}/{}{}-{}", options_.directory, result_.adopt ? "a" : "c", result_.engines,
                    result_.buffer_bytes);
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    auto fleet =
        MeasuredFleet::start({.executable = options_.executable,
                              .directory = directory,
                              .name = fmt::format("{}-{}", result_.engines, result_.buffer_bytes),
                              .checkpoint = options_.checkpoints.front(),
                              .engines = result_.engines,
                              .adopt = result_.adopt,
                              .devices = result_.devices,
                              .buffer_bytes = result_.buffer_bytes,
                              .tcp = result_.tcp},
                             children_);
    if (!fleet) return fail(fleet.error());
    fleet_ = std::move(*fleet);
    on_step_("starting");
    for (unsigned i = 0; i < kWarmUps; ++i) {
      (void)WSYNC_TRY(push());
      on_step_("warming up");
    }
    if (result_.has_floor()) WSYNC_TRY(choose_floor(machine.cores));
    (void)load_.since_last();
    for (unsigned i = 0; i < options_.rounds; ++i) {
      WSYNC_TRY(one_round(i % 2 == 0));
      on_step_("measuring");
    }
    result_.stolen = load_.since_last().stolen;
    WSYNC_TRY(fleet_->verify());
    WSYNC_TRY(fleet_->check_steps());
    on_step_("verifying");
    if (!options_.trace.empty()) WSYNC_TRY(fleet_->trace(options_.trace));
    summarise();
    return std::move(result_);
  }

 private:
  Result<Pushed> push() { return fleet_->push(options_.checkpoints[pushes_++ % 2]); }

  Result<> choose_floor(unsigned cores) {
    const std::vector<FloorWay> ways = floor_ways(cores);
    std::vector<std::vector<double>> times(ways.size());
    for (unsigned i = 0; i < kCalibrations; ++i) {
      const auto runs = WSYNC_TRY(fleet_->floor(ways));
      for (std::size_t w = 0; w < ways.size(); ++w)
        times[w].push_back(static_cast<double>(runs[w].ns));
    }
    for (std::size_t w = 0; w < ways.size(); ++w)
      result_.ways.push_back({.way = ways[w], .median_ns = spread_of(times[w]).median});
    result_.floor_way =
        std::min_element(result_.ways.begin(), result_.ways.end(),
                         [](const auto& a, const auto& b) { return a.median_ns < b.median_ns; })
            ->way;
    return {};
  }

  Result<> one_round(bool floor_first) {
    Round round{.floor_first = floor_first};
    const auto floor = [&]() -> Result<> {
      if (!result_.has_floor()) return {};
      FloorWay verified = result_.floor_way;
      verified.verified = true;
      const auto runs = WSYNC_TRY(fleet_->floor({result_.floor_way, verified}));
      round.floor = runs.front();
      round.verified = runs.back();
      return {};
    };
    const auto copied_before = WSYNC_TRY(fleet_->copied_bytes());
    if (floor_first) WSYNC_TRY(floor());
    const auto cpu_before = WSYNC_TRY(fleet_->cpu_time());
    auto pushed = WSYNC_TRY(push());
    round.pushed = pushed;
    const auto cpu_after = WSYNC_TRY(fleet_->cpu_time());
    round.cpu = cpu_after - cpu_before;
    if (!floor_first) WSYNC_TRY(floor());
    const auto copied_after = WSYNC_TRY(fleet_->copied_bytes());
    round.copies = by_bytes(copied_after - copied_before, result_);
    const auto memory = WSYNC_TRY(fleet_->sidecar_memory());
    round.sidecar = memory;
    if (round.pushed.checked_bytes != result_.expected_bytes)
      return fail(ErrorCode::kDigestMismatch,
                  fmt::format("engines checked {} bytes in a round, expected {}",
                              round.pushed.checked_bytes, result_.expected_bytes));
    if (round.pushed.paused_ns == 0) return fail(ErrorCode::kInternal, "the push paused no engine");
    if (result_.has_floor() && round.floor.bytes != result_.expected_bytes)
      return fail(ErrorCode::kInternal,
                  fmt::format("the floor copied {} bytes, expected {}, as many as an update loads",
                              round.floor.bytes, result_.expected_bytes));
    result_.rounds.push_back(round);
    return {};
  }

  void summarise() {
    const auto spread = [this](const std::function<double(const Round&)>& of) {
      return spread_of(column(result_, of));
    };
    const auto ns = [](std::uint64_t value) { return static_cast<double>(value); };
    result_.paused_ns = spread([&](const Round& r) { return ns(r.pushed.paused_ns); });
    result_.load_ns = spread([&](const Round& r) { return ns(r.pushed.load_ns); });
    result_.span_ns = spread([&](const Round& r) { return ns(r.pushed.span_ns); });
    result_.staged_ns = spread([&](const Round& r) { return ns(r.pushed.staged_ns); });
    result_.cpu_per_gigabyte = spread([&](const Round& r) {
      return 1e9 * seconds(r.cpu) / static_cast<double>(result_.expected_bytes);
    });
    for (double CopiesPerByte::* which :
         {&CopiesPerByte::snapshot, &CopiesPerByte::sent, &CopiesPerByte::received,
          &CopiesPerByte::h2d, &CopiesPerByte::broadcast, &CopiesPerByte::loaded})
      result_.copies.*which = spread([which](const Round& r) { return r.copies.*which; }).median;
    result_.peak = fleet_->peak_memory();
    if (result_.has_floor()) {
      result_.verified_ns = spread([&](const Round& r) { return ns(r.verified.ns); });
      result_.floor_ns = spread([&](const Round& r) { return ns(r.floor.ns); });
      result_.ratio = spread([](const Round& r) { return r.ratio(); });
    }
    for (const Round& round : result_.rounds) {
      result_.pss_bytes = std::max(result_.pss_bytes, round.sidecar.pss_bytes);
      result_.rss_bytes = std::max(result_.rss_bytes, round.sidecar.rss_bytes);
    }
    result_.checked_bytes = result_.rounds.back().pushed.checked_bytes;
    result_.pss_limit_bytes = fleet_->versions_held() * options_.bytes + kSidecarOwnBytes +
                              result_.devices * 3 * result_.buffer_bytes;
  }

  const SyncBenchOptions& options_;
  const Interrupt& interrupt_;
  cli::ChildProcesses& children_;
  const std::function<void(std::string_view)> on_step_;
  CpuLoad load_;
  std::unique_ptr<MeasuredFleet> fleet_;
  unsigned pushes_ = 0;
  SyncCase result_;
};

}  // namespace

Result<> check_sync_bench(const SyncBenchOptions& options, std::uint64_t bytes) {
  if (options.engines.empty() || options.rounds == 0)
    return fail(ErrorCode::kInvalidInput, "expected at least one number of engines and one round");
  if (options.devices == 0 && !options.buffers.empty())
    return fail(ErrorCode::kInvalidInput,
                "--buffer needs separate devices; give their number with --devices");
  if (options.devices > 0 && options.adopt)
    return fail(ErrorCode::kInvalidInput,
                "--adopt: engines on separate devices cannot map the staged version");
  for (const std::uint64_t buffer : options.buffers)
    if (buffer < limits::kBucketBytesMin || buffer > limits::kBucketBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--buffer is {} bytes, expected 1MiB to 8GiB", buffer));
  const unsigned max = *std::max_element(options.engines.begin(), options.engines.end());
  // Snapshots and the engines' own memory. One more copy leaves room for everything else. Over TCP
  // the sidecar also has its own arenas.
  const std::uint64_t versions = (options.adopt ? 4 : 3) + (options.adopt ? 0 : max) + 1 +
                                 (options.tcp ? (options.adopt ? 3 : 2) : 0);
  return require_copies(versions, bytes, fmt::format("for {}", counted(max, "engine")));
}

bool SyncCase::speed_met() const {
  if (adopt) return paused_ns.max <= static_cast<double>(kAdoptTargetNs);
  return !has_floor() || ratio.median >= kRatioTarget;
}

Result<SyncBenchResult> run_sync_bench(const SyncBenchOptions& options, const Interrupt& interrupt,
                                       const OnProgress& on_progress) {
  if (options.checkpoints.size() != 2)
    return fail(ErrorCode::kInvalidInput,
                "expected two checkpoints, so that each update changes the bytes");
  WSYNC_TRY(check_sync_bench(options, options.bytes));
  SyncBenchResult result{.machine = this_machine(), .bytes = options.bytes};
  CpuLoad load;
  result.copy_rate =
      measure_copy_rate(std::min(options.bytes, kProbeBytes), std::max(1U, result.machine.cores));
  unsigned done = 0;
  std::vector<std::pair<unsigned, std::uint64_t>> cases;  // number of engines, bytes per buffer
  for (const unsigned engines : options.engines) {
    if (options.buffers.empty()) cases.emplace_back(engines, 0);
    for (const std::uint64_t bytes : options.buffers) cases.emplace_back(engines, bytes);
  }
  const auto total = static_cast<unsigned>(cases.size()) * Case::steps(options);
  const auto children = WSYNC_TRY(bench_children(options.directory));
  for (const auto& [count, buffer_bytes] : cases) {
    const unsigned engines = count;
    Case one(options, engines, buffer_bytes, interrupt, *children,
             [&, engines](std::string_view what) {
               on_progress(fmt::format("{}: {}", counted(engines, "engine"), what), ++done, total);
             });
    try {
      auto measured = one.run(result.machine, result.copy_rate);
      if (!measured) return fail(measured.error().with_context(fmt::format("{} engines", engines)));
      result.cases.push_back(std::move(*measured));
    } catch (const nlohmann::json::exception& error) {
      return fail(
          ErrorCode::kInternal,
          fmt::format("{} engines: a reply has an unexpected format: {}", engines, error.what()));
    }
  }
  return result;
}

}  // namespace wsync::bench
