// `wsync bench overhead` measures the processor time that observing an update costs: recording
// spans, serving pages to a scraper, and writing traces. How to read the table, and limits:
// deploy/guides/benchmark.md.
//
// Two fleets run at the same time. One has the default settings. The other records no spans and
// serves no pages (trace_spans: 0, http.address: none), which is checked. The figure is the
// difference in processor time between two kinds of updates of the same round, in percent. It
// includes user and system time of trainer, sidecar and engines, from before the update until all
// engines serve. The time of `wsync push --trace` itself is shown separately. The interval is for
// the median, with a confidence of at least 95 % (harness/median_interval.h). The target is met if
// the whole interval is at most 1 %, missed if it is above, and open otherwise.
//
// Making spans: the spans of an update are recorded again in a full ring. This is a lower bound:
// strings are copied instead of composed, and counters (one addition each) are not included.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/harness/median_interval.h"
#include "bench/harness/spread.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr double kOverheadTargetPercent = 1;
inline constexpr std::size_t kOverheadPairsWanted = 30;
inline constexpr double kOverheadConfidence = 0.95;

// How an update is observed. A round has two updates of each kind, the second half in the reverse
// order of the first half.
enum class Watching : std::uint8_t {
  kNot,   // a fleet that records no spans and serves no pages
  kKept,  // a fleet with default settings that nobody queries
  // the same fleet: scraped at the start and then every second, and traced by `wsync push --trace`
  kAsked,
};
inline constexpr std::array kWatchings = {Watching::kNot, Watching::kKept, Watching::kAsked};
[[nodiscard]] std::string_view watching_name(Watching watching) noexcept;  // "not", "kept", "asked"

// Means of the two updates of one kind in a round.
struct WatchedUpdate {
  // user and system time of trainer, sidecar and engines
  std::chrono::nanoseconds cpu{0};
  std::chrono::nanoseconds command_cpu{0};  // processor time of `wsync push`
  std::uint64_t paused_ns = 0;
  double pages = 0;  // number of scraped pages
};

struct OverheadRound {
  unsigned fleets = 0;      // index of the pair of fleets, which is restarted regularly
  std::uint64_t spans = 0;  // spans of trainer and sidecar in the newest trace
  // Processor time to record those spans again in a full ring.
  std::chrono::nanoseconds making{0};
  std::array<WatchedUpdate, kWatchings.size()> updates;  // by Watching
  [[nodiscard]] const WatchedUpdate& of(Watching watching) const {
    return updates[static_cast<std::size_t>(watching)];
  }
  // Additional processor time of the update, in percent of that of `beside`.
  [[nodiscard]] double percent(Watching watching, Watching beside) const;
};

enum class OverheadVerdict : std::uint8_t {
  kMet,     // the whole interval is at most the target
  kMissed,  // the whole interval is above it
  kOpen,    // the interval contains the target, or there are too few pairs
};
[[nodiscard]] std::string_view verdict_name(OverheadVerdict verdict) noexcept;

// Paired differences of all rounds. The target applies to kAsked compared with kKept, which are the
// same fleet with the same memory. Two fleets differ by more than that because their memory is
// placed differently.
struct Overhead {
  Watching watching = Watching::kAsked;
  Watching beside = Watching::kKept;
  Spread percent;
  // for the median; confidence of at least kOverheadConfidence
  std::optional<MedianInterval> interval;
  [[nodiscard]] bool has_target() const noexcept {
    return watching == Watching::kAsked && beside == Watching::kKept;
  }
  [[nodiscard]] OverheadVerdict verdict() const;
};

struct OverheadBenchOptions {
  std::string executable;                // wsync
  std::string directory;                 // for all created files; the owner removes it
  std::vector<std::string> checkpoints;  // two, with equal layouts and different bytes
  std::uint64_t bytes = 0;               // bytes of one checkpoint
  unsigned engines = 1;
  unsigned rounds = 30;
  // Rounds after which both fleets are restarted. The placement of memory is constant during a
  // fleet's life and would otherwise be mistaken for a cost of observing.
  unsigned rounds_of_fleets = 6;
};

struct OverheadBenchResult {
  Machine machine;
  std::uint64_t bytes = 0;
  unsigned engines = 1;
  std::vector<OverheadRound> rounds;
  double others_busy = 0;  // as of CpuLoad
  double stolen = 0;
  [[nodiscard]] Overhead overhead(Watching watching, Watching beside) const;
};

// Checks the maximum memory of two fleets. kResourceExhausted, with the needed amount, if it is not
// available.
[[nodiscard]] Result<> check_overhead_memory(std::uint64_t model_bytes, unsigned engines);

// Runs two fleets at the same time. The order of the updates is reversed with each round.
// kInvalidInput without two checkpoints. kInternal if the unobserved fleet has spans or the other
// one has none. Otherwise as run_sync_bench().
[[nodiscard]] Result<OverheadBenchResult> run_overhead_bench(
    const OverheadBenchOptions& options, const Interrupt& interrupt,
    const std::function<void(std::string_view label, unsigned done, unsigned total)>& on_progress);

}  // namespace wsync::bench
