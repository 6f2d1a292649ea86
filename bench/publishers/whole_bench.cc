#include "bench/publishers/whole_bench.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/harness/memory.h"
#include "bench/harness/report.h"
#include "bench/harness/spread.h"
#include "bench/publishers/c_publisher.h"
#include "bench/publishers/publishing_fleet.h"
#include "bench/publishers/unexplained.h"
#include "bench/sync/floor.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr unsigned kPairsBefore = 3;     // until every arena has been used
constexpr unsigned kTriesOfEachWay = 3;  // to copy the floor
constexpr unsigned kExplained = 3;       // updates whose traces are looked at
constexpr std::uint64_t kVersionsHeld = 3;
constexpr const char* kCopied = "c";

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

// All rounds of one fleet, times in ms.
struct WholeRounds {
  std::vector<double> copied, copied_floor, in_place, in_place_floor;
  std::vector<double> unexplained;                   // in percent, not of every round
  std::vector<WorkTime> copied_work, in_place_work;  // of the update that was explained last
};

class WholeFleet {
 public:
  WholeFleet(const WholeBenchOptions& options, const ModelSource& source,
             cli::ChildProcesses& children, unsigned engines)
      : options_(options), source_(source), children_(children), engines_(engines) {}

  Result<> start() {
    const std::string directory = fmt::format("{}/{}", options_.directory, engines_);
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    fleet_ = WSYNC_TRY(PublishingFleet::start({.fleet = {.executable = options_.executable,
                                                         .directory = directory,
                                                         .name = fmt::format("w{}", engines_),
                                                         .checkpoint = options_.checkpoint,
                                                         .engines = engines_,
                                                         .gpus = {},
                                                         .has_trainer = false},
                                               .executable = options_.executable,
                                               .command = {"bench", "publisher", "--job"},
                                               .kinds = {kCopied}},
                                              source_, children_));
    for (unsigned i = 0; i < kPairsBefore; ++i) {
      (void)WSYNC_TRY(publish(kCopied));
      (void)WSYNC_TRY(publish(kPublishInPlace));
    }
    return choose_floors();
  }

  Result<> one_round(bool is_reversed) {
    if (is_reversed) {
      WSYNC_TRY(publish_in_place());
      WSYNC_TRY(floors());
      return publish_copied();
    }
    WSYNC_TRY(publish_copied());
    WSYNC_TRY(floors());
    return publish_in_place();
  }

  // Publishes once more in each way, and keeps what the traces explain of these updates.
  Result<> explain() {
    (void)WSYNC_TRY(publish(kPublishInPlace));
    rounds_.in_place_work = WSYNC_TRY(work_times(WSYNC_TRY(fleet_->trace())));
    (void)WSYNC_TRY(publish(kCopied));
    const auto trace = WSYNC_TRY(fleet_->trace());
    rounds_.unexplained.push_back(WSYNC_TRY(unexplained_percent(trace)));
    rounds_.copied_work = WSYNC_TRY(work_times(trace));
    return {};
  }

  Result<> verify() { return fleet_->verify(); }
  [[nodiscard]] const WholeRounds& rounds() const noexcept { return rounds_; }

 private:
  Result<double> publish(const std::string& kind) {
    const auto sample = WSYNC_TRY(fleet_->publish(kind, ++stamp_));
    return ms(sample.whole_ns);
  }
  Result<> publish_copied() {
    rounds_.copied.push_back(WSYNC_TRY(publish(kCopied)));
    return {};
  }
  Result<> publish_in_place() {
    rounds_.in_place.push_back(WSYNC_TRY(publish(kPublishInPlace)));
    return {};
  }
  Result<> floors() {
    const auto snapshot = WSYNC_TRY(fleet_->snapshot_floor(snapshot_way_));
    const auto load = WSYNC_TRY(fleet_->engines_floor({load_way_}));
    if (load.front().bytes != options_.bytes * engines_)
      return fail(ErrorCode::kInternal,
                  fmt::format("the floor copied {} bytes, expected {}, as many as an update loads",
                              load.front().bytes, options_.bytes * engines_));
    rounds_.copied_floor.push_back(ms(snapshot) + ms(load.front().ns));
    rounds_.in_place_floor.push_back(ms(load.front().ns));
    return {};
  }

  // The fastest way of each copy.
  Result<> choose_floors() {
    const std::vector<FloorWay> ways = floor_ways(this_machine().cores);
    std::vector<std::vector<double>> snapshot(ways.size());
    std::vector<std::vector<double>> load(ways.size());
    for (unsigned i = 0; i < kTriesOfEachWay; ++i) {
      const auto runs = WSYNC_TRY(fleet_->engines_floor(ways));
      for (std::size_t w = 0; w < ways.size(); ++w) {
        load[w].push_back(ms(runs[w].ns));
        snapshot[w].push_back(ms(WSYNC_TRY(fleet_->snapshot_floor(ways[w]))));
      }
    }
    const auto fastest = [&](const std::vector<std::vector<double>>& times) {
      const auto found = std::ranges::min_element(
          times, {}, [](const std::vector<double>& of) { return spread_of(of).median; });
      return ways[static_cast<std::size_t>(found - times.begin())];
    };
    snapshot_way_ = fastest(snapshot);
    load_way_ = fastest(load);
    return {};
  }

  const WholeBenchOptions& options_;
  const ModelSource& source_;
  cli::ChildProcesses& children_;
  const unsigned engines_;
  std::unique_ptr<PublishingFleet> fleet_;
  std::uint64_t stamp_ = 0;
  FloorWay snapshot_way_, load_way_;
  WholeRounds rounds_;
};

// One sentence: where the time of the update that was explained last went.
std::string work_sentence(std::string_view name, const std::vector<WorkTime>& work) {
  // What would be printed as 0.00 is left out.
  constexpr double kSmallestMs = 0.005;
  std::vector<std::string> parts;
  for (const WorkTime& one : work)
    if (one.ms >= kSmallestMs) parts.push_back(fmt::format("{} {:.2f}", one.work, one.ms));
  return fmt::format("where the time of one more update went, {}, in ms, by its spans: {}", name,
                     fmt::join(parts, ", "));
}

void add_cases(const WholeBenchOptions& options, unsigned engines, const WholeRounds& rounds,
               SuiteResult& suite) {
  const bool is_small = options.bytes <= kSmallBytes;
  const auto add = [&](std::string_view name, const std::vector<double>& times,
                       const std::vector<double>& floor, double max_by_floor) {
    CaseResult one = case_of("whole", name, counted(engines, "engine"), times);
    set_baseline_of("whole", name, one, floor);
    one.bytes = options.bytes;
    one.target = is_small ? Target{.of = Target::Of::kMedian, .value = kSmallTargetMs}
                          : Target{.of = Target::Of::kRatio, .value = 1 / max_by_floor};
    suite.cases.push_back(std::move(one));
  };
  add("publish", rounds.copied, rounds.copied_floor, kPublishByFloor);
  add("in place", rounds.in_place, rounds.in_place_floor, kInPlaceByFloor);
  CaseResult one = case_of("whole", "unexplained", counted(engines, "engine"), rounds.unexplained);
  if (!is_small) one.target = Target{.of = Target::Of::kMedian, .value = kUnexplainedPercent};
  suite.cases.push_back(std::move(one));
  const std::string with = counted(engines, "engine");
  suite.notes.push_back(work_sentence(fmt::format("publish, {}", with), rounds.copied_work));
  suite.notes.push_back(work_sentence(fmt::format("in place, {}", with), rounds.in_place_work));
}

Result<SuiteResult> measure_all(const WholeBenchOptions& options, const Interrupt& interrupt,
                                const OnTurn& on_turn) {
  SuiteResult suite{.suite = "whole",
                    .parameters = {{"bytes", options.bytes}, {"engines", options.engines}},
                    .cases = {},
                    .notes = {},
                    .details = {}};
  const double busy = WSYNC_TRY(busy_with_others(interrupt));
  const auto source = WSYNC_TRY(make_source(options.directory, {options.checkpoint}));
  const auto children = WSYNC_TRY(bench_children(options.directory));
  CpuLoad load;
  unsigned done = 0;
  const auto total = static_cast<unsigned>(options.engines.size()) * (options.rounds + 1);
  for (const unsigned engines : options.engines) {
    WholeFleet fleet(options, source, *children, engines);
    const std::string name = counted(engines, "engine");
    on_turn(name + ": warming up", ++done, total);
    WSYNC_TRY(fleet.start());
    for (unsigned i = 0; i < options.rounds; ++i) {
      on_turn(name + ": measuring", ++done, total);
      WSYNC_TRY(fleet.one_round(i % 2 == 1));
    }
    for (unsigned i = 0; i < kExplained; ++i) WSYNC_TRY(fleet.explain());
    WSYNC_TRY(fleet.verify());
    add_cases(options, engines, fleet.rounds(), suite);
  }
  for (std::string& note : load_sentences(busy, load.since_last().stolen))
    suite.notes.push_back(std::move(note));
  return suite;
}

}  // namespace

Result<> check_whole_bench(const WholeBenchOptions& options, std::uint64_t bytes) {
  if (options.engines.empty() || options.rounds == 0)
    return fail(ErrorCode::kInvalidInput, "expected at least one number of engines and one round");
  const unsigned engines = std::ranges::max(options.engines);
  // The weights, the file from which they are read, the memory of the floor, the snapshots, and the
  // engines' own memory.
  return require_copies(3 + kVersionsHeld + engines, bytes,
                        fmt::format("for {}", counted(engines, "engine")));
}

Result<SuiteResult> run_whole_bench(const WholeBenchOptions& options, const Interrupt& interrupt,
                                    const OnTurn& on_turn) {
  WSYNC_TRY(check_whole_bench(options, options.bytes));
  try {
    return measure_all(options, interrupt, on_turn);
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("an answer has an unexpected format: {}", error.what()));
  }
}

}  // namespace wsync::bench
