#include "bench/overhead/overhead_bench.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <memory>

#include "bench/harness/memory.h"
#include "bench/harness/scrape.h"
#include "bench/sync/measured_fleet.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/config/defaults.h"
#include "shared/observe/trace/chrome_trace_reader.h"

namespace wsync::bench {
namespace {

// pushes until every arena and every buffer has been used
constexpr unsigned kOverheadWarmUps = 3;
constexpr std::chrono::milliseconds kScrapeInterval{1'000};
constexpr std::uint64_t kFleets = 2;
constexpr unsigned kMakings = 20;        // repetitions of an update's spans in one sample
constexpr unsigned kUpdatesOfRound = 2;  // of each kind

Result<std::vector<trace::Span>> spans_in(const std::string& path) {
  auto processes = WSYNC_TRY(trace::read_chrome_trace(path));
  std::vector<trace::Span> spans;
  for (trace::ProcessTrace& process : processes)
    std::ranges::move(process.spans, std::back_inserter(spans));
  return spans;
}

// Processor time of the calling thread.
std::chrono::nanoseconds own_cpu_time() {
  timespec time{};
  WSYNC_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0,
              "the thread has a processor time clock");
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

class OverheadRun {
 public:
  OverheadRun(const OverheadBenchOptions& options, const Interrupt& interrupt,
              std::function<void(std::string_view)> on_step)
      : options_(options), interrupt_(interrupt), on_step_(std::move(on_step)) {}

  [[nodiscard]] Result<OverheadBenchResult> run() {
    OverheadBenchResult result{
        .machine = this_machine(), .bytes = options_.bytes, .engines = options_.engines};
    const auto busy = WSYNC_TRY(busy_with_others(interrupt_));
    result.others_busy = busy;
    children_ = WSYNC_TRY(bench_children(options_.directory));
    CpuLoad load;
    for (unsigned round = 0; round < options_.rounds; ++round) {
      if (round % options_.rounds_of_fleets == 0) WSYNC_TRY(start_fleets());
      auto measured = WSYNC_TRY(one_round(round % 2 == 1));
      measured.fleets = started_ - 1;
      result.rounds.push_back(measured);
      on_step_("measuring");
    }
    WSYNC_TRY(end_fleets());
    result.stolen = load.since_last().stolen;
    return result;
  }

 private:
  struct Side {
    std::unique_ptr<MeasuredFleet> fleet;
    unsigned pushes = 0;
  };

  Result<> start(Side& side, const char* name, Watched watched) {
    const std::string directory = fmt::format("{}/{}{}", options_.directory, name, started_);
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    auto fleet = WSYNC_TRY(MeasuredFleet::start({.executable = options_.executable,
                                                 .directory = directory,
                                                 .name = fmt::format("{}{}", name, started_),
                                                 .checkpoint = options_.checkpoints.front(),
                                                 .engines = options_.engines,
                                                 .watched = watched},
                                                *children_));
    side = {.fleet = std::move(fleet)};
    for (unsigned i = 0; i < kOverheadWarmUps; ++i) (void)WSYNC_TRY(push(side));
    return {};
  }

  Result<> start_fleets() {
    if (started_ > 0) WSYNC_TRY(end_fleets());
    // The order changes, because the fleet that starts first affects where memory is placed.
    const bool turned = started_ % 2 == 1;
    for (const bool watched : {turned, !turned})
      WSYNC_TRY(watched ? start(watched_, "w", Watched::kAlways)
                        : start(other_, "n", Watched::kNever));
    ++started_;
    on_step_("starting");
    return {};
  }

  // Checks before the fleets end that one fleet has spans and the other has none, and that the
  // engines of both hold the right bytes.
  Result<> end_fleets() {
    const std::string path = trace_path();
    for (Side* side : {&watched_, &other_}) {
      WSYNC_TRY(side->fleet->verify());
      WSYNC_TRY(side->fleet->check_steps());
      WSYNC_TRY(side->fleet->trace(path));
      const auto spans = WSYNC_TRY(spans_in(path));
      if (!spans.empty() != (side == &watched_))
        return fail(ErrorCode::kInternal, fmt::format("the fleet that is {} kept {}",
                                                      side == &watched_ ? "watched" : "not watched",
                                                      counted(spans.size(), "span")));
      side->fleet.reset();
    }
    return {};
  }

  [[nodiscard]] std::string trace_path() const { return options_.directory + "/trace.json"; }

  Result<Pushed> push(Side& side, const std::string& trace = "") {
    return side.fleet->push(options_.checkpoints[side.pushes++ % 2], trace);
  }

  Result<WatchedUpdate> update(Watching watching) {
    Side& side = watching == Watching::kNot ? other_ : watched_;
    const auto before = WSYNC_TRY(side.fleet->cpu_time());
    std::unique_ptr<Scraping> scraping;
    if (watching == Watching::kAsked)
      scraping = std::make_unique<Scraping>(side.fleet->page_sockets(), kScrapeInterval);
    const auto pushed = WSYNC_TRY(push(side, watching == Watching::kAsked ? trace_path() : ""));
    WatchedUpdate done{.command_cpu = pushed.command_cpu, .paused_ns = pushed.paused_ns};
    if (scraping) {
      const auto pages = WSYNC_TRY(scraping->stop());
      done.pages = pages;
    }
    const auto after = WSYNC_TRY(side.fleet->cpu_time());
    done.cpu = after - before;
    if (pushed.checked_bytes != options_.bytes * options_.engines)
      return fail(ErrorCode::kDigestMismatch,
                  fmt::format("engines checked {} bytes in an update, expected {}",
                              pushed.checked_bytes, options_.bytes * options_.engines));
    return done;
  }

  // Does what agents do: strings are copied, and the ring drops an older span.
  Result<> make_spans(OverheadRound& round) {
    const auto spans = WSYNC_TRY(spans_in(trace_path()));
    if (spans.empty()) return fail(ErrorCode::kInternal, "the trace of an update contains no span");
    round.spans = spans.size();
    while (ring_.dropped() == 0) ring_.record(spans.front());
    const auto before = own_cpu_time();
    for (unsigned i = 0; i < kMakings; ++i)
      for (const trace::Span& span : spans) ring_.record(span);
    round.making = (own_cpu_time() - before) / kMakings;
    return {};
  }

  Result<OverheadRound> one_round(bool turned) {
    OverheadRound round;
    for (std::size_t i = 0; i < kUpdatesOfRound * kWatchings.size(); ++i) {
      // 0 1 2 2 1 0, or 2 1 0 0 1 2
      const bool back = (i >= kWatchings.size()) != turned;
      const std::size_t step = i % kWatchings.size();
      const std::size_t at = back ? kWatchings.size() - 1 - step : step;
      const auto done = WSYNC_TRY(update(kWatchings[at]));
      WatchedUpdate& mean = round.updates[at];
      mean.cpu += done.cpu / kUpdatesOfRound;
      mean.command_cpu += done.command_cpu / kUpdatesOfRound;
      mean.paused_ns += done.paused_ns / kUpdatesOfRound;
      mean.pages += done.pages / kUpdatesOfRound;
    }
    WSYNC_TRY(make_spans(round));
    return round;
  }

  const OverheadBenchOptions& options_;
  const Interrupt& interrupt_;
  const std::function<void(std::string_view)> on_step_;
  std::unique_ptr<cli::ChildProcesses> children_;  // outlives the fleets' processes
  Side watched_, other_;
  unsigned started_ = 0;  // number of pairs of fleets started so far
  trace::Recorder ring_{config::kTraceSpansDefault, trace::WhenFull::kDropOldest};
};

}  // namespace

std::string_view watching_name(Watching watching) noexcept {
  switch (watching) {
    case Watching::kNot:
      return "not";
    case Watching::kKept:
      return "kept";
    case Watching::kAsked:
      return "asked";
  }
  return "";
}

std::string_view verdict_name(OverheadVerdict verdict) noexcept {
  switch (verdict) {
    case OverheadVerdict::kMet:
      return "met";
    case OverheadVerdict::kMissed:
      return "missed";
    case OverheadVerdict::kOpen:
      return "open";
  }
  return "";
}

double OverheadRound::percent(Watching watching, Watching beside) const {
  const auto base = static_cast<double>(of(beside).cpu.count());
  WSYNC_CHECK(base > 0, "an update takes processor time");
  return 100 * (static_cast<double>(of(watching).cpu.count()) / base - 1);
}

OverheadVerdict Overhead::verdict() const {
  if (!interval) return OverheadVerdict::kOpen;
  if (interval->high <= kOverheadTargetPercent) return OverheadVerdict::kMet;
  return interval->low > kOverheadTargetPercent ? OverheadVerdict::kMissed : OverheadVerdict::kOpen;
}

Overhead OverheadBenchResult::overhead(Watching watching, Watching beside) const {
  std::vector<double> differences;
  for (const OverheadRound& round : rounds) differences.push_back(round.percent(watching, beside));
  return {.watching = watching,
          .beside = beside,
          .percent = spread_of(differences),
          .interval = median_interval(differences, kOverheadConfidence)};
}

Result<> check_overhead_memory(std::uint64_t model_bytes, unsigned engines) {
  // Per fleet: its snapshots, which the sidecar maps, and the weights of each engine.
  const std::uint64_t copies = kFleets * (3 + std::uint64_t{engines}) + 1;
  return require_copies(copies, model_bytes,
                        fmt::format("for two fleets with {} each", counted(engines, "engine")));
}

Result<OverheadBenchResult> run_overhead_bench(
    const OverheadBenchOptions& options, const Interrupt& interrupt,
    const std::function<void(std::string_view, unsigned, unsigned)>& on_progress) {
  if (options.checkpoints.size() != 2)
    return fail(ErrorCode::kInvalidInput,
                "expected two checkpoints, so that each update changes the bytes");
  if (options.engines == 0 || options.rounds == 0 || options.rounds_of_fleets == 0)
    return fail(ErrorCode::kInvalidInput, "expected at least one engine and one round");
  WSYNC_TRY(check_overhead_memory(options.bytes, options.engines));
  const unsigned starts =
      (options.rounds + options.rounds_of_fleets - 1) / options.rounds_of_fleets;
  unsigned done = 0;
  OverheadRun run(options, interrupt, [&](std::string_view what) {
    on_progress(what, ++done, starts + options.rounds);
  });
  try {
    return run.run();
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("a reply has an unexpected format: {}", error.what()));
  }
}

}  // namespace wsync::bench
