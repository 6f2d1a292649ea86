#include "bench/publishers/delta_bench.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/harness/machine.h"
#include "bench/harness/memory.h"
#include "bench/harness/report.h"
#include "bench/publishers/c_publisher.h"
#include "bench/publishers/delta_fleet.h"
#include "bench/publishers/publishing_fleet.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kVersionsOfDelta = 3;
constexpr double kAllPercent = 100;
constexpr double kAll = 1;

// Pause by the pause of a full update, as a maximum, and size of a patch of bfloat16 weights in
// percent, likewise. The sizes are those of shared/weights/patch/README.md. Also the time of a
// snapshot by that of a full update. 0: none.
struct Limits {
  double percent = 0;  // of elements
  double pause = 0;
  double size = 0;
  double snapshot = 0;
};
constexpr std::array kLimits{Limits{0.01, 0.08, 0, 0}, Limits{0.1, 0.22, 0.26, 1.35},
                             Limits{1, 0.6, 1.7, 1.6}};
constexpr double kMemoryModels = 1.1;
constexpr double kMemoryPercent = 1;      // of elements; of more, patches alone need that much
constexpr unsigned kUpdatesOfMemory = 5;  // in which this share changes, one after the other
constexpr double kTensorsByShare = 1.2;   // pause by pause, by the share of whole tensors

// One share, and what was measured with it.
struct Share {
  std::string how;  // "elements", "tensors"
  double percent = 0;
  std::vector<double> pause, pause_of_all, update, update_of_all, snapshot, snapshot_of_all;
  std::vector<double> patch;      // percent of the model, of those that were made
  std::vector<double> travelled;  // percent of the model, by `tcp`
  std::vector<double> memory;     // of versions and patches, in models
  [[nodiscard]] std::string name() const { return fmt::format("{:g} % of {}", percent, how); }
};

class DeltaFleet {
 public:
  DeltaFleet(const DeltaBenchOptions& options, const ModelSource& source,
             cli::ChildProcesses& children)
      : options_(options), source_(source), children_(children) {}

  Result<> start() {
    fleet_ = WSYNC_TRY(new_fleet(DeltaFleetOptions().full_updates));
    return {};
  }

  // In a fleet of its own, because updates in which all weights change need arenas of their own.
  Result<> measure_memory(Share& share) {
    fleet_.reset();
    fleet_ = WSYNC_TRY(new_fleet(1));
    for (unsigned i = 0; i < kUpdatesOfMemory; ++i) {
      (void)WSYNC_TRY(publish(share.how, share.percent / kAllPercent));
      share.memory.push_back(static_cast<double>(WSYNC_TRY(fleet_->version_bytes())) /
                             static_cast<double>(source_.bytes));
    }
    return fleet_->verify();
  }

  Result<> one_round(Share& share, bool is_reversed) {
    if (is_reversed) WSYNC_TRY(publish_all(share));
    const auto before = WSYNC_TRY(fleet_->patch_counts());
    const auto sample = WSYNC_TRY(publish(share.how, share.percent / kAllPercent));
    const auto after = WSYNC_TRY(fleet_->patch_counts());
    share.pause.push_back(in_ms(sample.paused_ns));
    share.update.push_back(in_ms(sample.whole_ns));
    share.snapshot.push_back(in_ms(sample.snapshot_ns));
    if (after.loads - before.loads == options_.engines)
      share.patch.push_back(kAllPercent * static_cast<double>(after.bytes - before.bytes) /
                            static_cast<double>(source_.bytes));
    if (after.travelled_bytes != 0)
      share.travelled.push_back(
          kAllPercent * static_cast<double>(after.travelled_bytes - before.travelled_bytes) /
          static_cast<double>(source_.bytes));
    return is_reversed ? Result<>() : publish_all(share);
  }

  Result<> verify() { return fleet_->verify(); }

 private:
  Result<> publish_all(Share& share) {
    const auto sample = WSYNC_TRY(publish("elements", kAll));
    share.pause_of_all.push_back(in_ms(sample.paused_ns));
    share.update_of_all.push_back(in_ms(sample.whole_ns));
    share.snapshot_of_all.push_back(in_ms(sample.snapshot_ns));
    return {};
  }
  Result<std::unique_ptr<PublishingFleet>> new_fleet(unsigned full_updates) {
    return start_delta_fleet({.executable = options_.executable,
                              .directory = options_.directory,
                              .checkpoint = options_.checkpoint,
                              .engines = options_.engines,
                              .transport = options_.transport,
                              .full_updates = full_updates},
                             source_, children_);
  }
  Result<PublishSample> publish(const std::string& how, double share) {
    (void)WSYNC_TRY(fleet_->change(how, share, ++seed_));
    return fleet_->publish(kPublishChanged, seed_);
  }

  const DeltaBenchOptions& options_;
  const ModelSource& source_;
  cli::ChildProcesses& children_;
  std::unique_ptr<PublishingFleet> fleet_;
  std::uint64_t seed_ = 0;
};

// The limits of a share; 0: none.
Limits limits_of(const Share& share) {
  if (share.how == "tensors")
    return {.percent = share.percent,
            .pause = kTensorsByShare * share.percent / kAllPercent,
            .size = 0,
            .snapshot = 0};
  const auto found = std::ranges::find(kLimits, share.percent, &Limits::percent);
  return found == kLimits.end() ? Limits{} : *found;
}

// The largest share of which a version is held as its changes. None where versions are copied: then
// trainer and sidecar are on different hosts as a rule, and have a model each.
Share* share_of_memory(const DeltaBenchOptions& options, std::vector<Share>& shares) {
  Share* largest = nullptr;
  if (options.transport != "memfd") return largest;
  for (Share& share : shares)
    if (share.how == "elements" && share.percent > 0 && share.percent <= kMemoryPercent &&
        (largest == nullptr || share.percent > largest->percent))
      largest = &share;
  return largest;
}

void add_cases(const DeltaBenchOptions& options, const Share& share, bool is_bf16,
               SuiteResult& suite) {
  const Limits limits = limits_of(share);
  CaseResult pause = case_of("delta", "pause", share.name(), share.pause);
  set_baseline_of("delta", "pause", pause, share.pause_of_all);
  pause.bytes = options.bytes;
  if (limits.pause > 0) pause.target = Target{.of = Target::Of::kRatio, .value = 1 / limits.pause};
  suite.cases.push_back(std::move(pause));
  CaseResult update = case_of("delta", "update", share.name(), share.update);
  set_baseline_of("delta", "update", update, share.update_of_all);
  update.bytes = options.bytes;
  suite.cases.push_back(std::move(update));
  CaseResult snapshot = case_of("delta", "snapshot", share.name(), share.snapshot);
  set_baseline_of("delta", "snapshot", snapshot, share.snapshot_of_all);
  snapshot.bytes = options.bytes;
  if (limits.snapshot > 0)
    snapshot.target = Target{.of = Target::Of::kRatio, .value = 1 / limits.snapshot};
  suite.cases.push_back(std::move(snapshot));
  if (!share.memory.empty()) {
    CaseResult memory = case_of("delta", "memory", share.name(), share.memory);
    memory.target = Target{.of = Target::Of::kMedian, .value = kMemoryModels};
    suite.cases.push_back(std::move(memory));
  }
  if (!share.travelled.empty()) {
    CaseResult travelled = case_of("delta", "travelled", share.name(), share.travelled);
    if (limits.size > 0 && is_bf16)
      travelled.target = Target{.of = Target::Of::kMedian, .value = limits.size};
    suite.cases.push_back(std::move(travelled));
  }
  if (share.patch.size() < share.pause.size())
    suite.notes.push_back(
        fmt::format("{}: loaded in full in {} of {} rounds, because a patch "
                    "would have been no cheaper",
                    share.name(), share.pause.size() - share.patch.size(), share.pause.size()));
  if (share.patch.empty()) return;
  CaseResult patch = case_of("delta", "patch", share.name(), share.patch);
  if (limits.size > 0 && is_bf16)
    patch.target = Target{.of = Target::Of::kMedian, .value = limits.size};
  suite.cases.push_back(std::move(patch));
}

std::vector<Share> shares_of(const DeltaBenchOptions& options) {
  std::vector<Share> shares;
  for (const double percent : options.elements)
    shares.push_back({.how = "elements", .percent = percent});
  for (const double percent : options.tensors)
    shares.push_back({.how = "tensors", .percent = percent});
  return shares;
}

Result<SuiteResult> measure_delta(const DeltaBenchOptions& options, const Interrupt& interrupt,
                                  const OnTurn& on_turn) {
  SuiteResult suite{.suite = "delta",
                    .parameters = {{"bytes", options.bytes},
                                   {"engines", options.engines},
                                   {"transport", options.transport},
                                   {"elements", options.elements},
                                   {"tensors", options.tensors}},
                    .cases = {},
                    .notes = {},
                    .details = {}};
  const double busy = WSYNC_TRY(busy_with_others(interrupt));
  const auto source = WSYNC_TRY(make_source(options.directory, {options.checkpoint}));
  const auto children = WSYNC_TRY(bench_children(options.directory));
  CpuLoad load;
  std::vector<Share> shares = shares_of(options);
  unsigned done = 0;
  Share* const of_memory = share_of_memory(options, shares);
  const auto total =
      static_cast<unsigned>(shares.size()) * options.rounds + 1 + (of_memory == nullptr ? 0 : 1);
  DeltaFleet fleet(options, source, *children);
  on_turn("warming up", ++done, total);
  WSYNC_TRY(fleet.start());
  for (unsigned i = 0; i < options.rounds; ++i)
    for (Share& share : shares) {
      on_turn(share.name(), ++done, total);
      WSYNC_TRY(fleet.one_round(share, i % 2 == 1));
    }
  WSYNC_TRY(fleet.verify());
  if (of_memory != nullptr) {
    on_turn("memory", ++done, total);
    WSYNC_TRY(fleet.measure_memory(*of_memory));
  }
  suite.notes = load_sentences(busy, load.since_last().stolen);
  const bool is_bf16 = std::ranges::all_of(
      source.tensors, [](const SourceTensor& tensor) { return tensor.info.dtype == DType::kBF16; });
  for (const Share& share : shares) add_cases(options, share, is_bf16, suite);
  return suite;
}

}  // namespace

Result<> check_delta_bench(const DeltaBenchOptions& options, std::uint64_t bytes) {
  const auto is_share = [](double percent) { return percent >= 0 && percent <= kAllPercent; };
  if (options.engines == 0 || options.rounds == 0 ||
      options.elements.size() + options.tensors.size() == 0 ||
      !std::ranges::all_of(options.elements, is_share) ||
      !std::ranges::all_of(options.tensors, is_share))
    return fail(ErrorCode::kInvalidInput,
                "expected one engine or more, one round or more, and shares from 0 to 100 percent");
  // The weights, the file from which they are read, the snapshots with a patch as large, and the
  // engines' own memory.
  return require_copies(3 + kVersionsOfDelta + options.engines, bytes,
                        fmt::format("for {}", counted(options.engines, "engine")));
}

Result<SuiteResult> run_delta_bench(const DeltaBenchOptions& options, const Interrupt& interrupt,
                                    const OnTurn& on_turn) {
  WSYNC_TRY(check_delta_bench(options, options.bytes));
  try {
    return measure_delta(options, interrupt, on_turn);
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("an answer has an unexpected format: {}", error.what()));
  }
}

}  // namespace wsync::bench
