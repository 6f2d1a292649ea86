// `wsync bench overhead`: what watching an update costs in processor time: spans that are kept,
// pages that are served and scraped, traces that are written. How to read the table, and limits:
// deploy/guides/benchmark.md.
//
// Two fleets are alive at the same time, one as it is by default, one that makes no spans and
// serves no pages (trace_spans: 0, http.address: none); that it has none is checked. The figure is
// the processor time of one kind beside another of the same round, in percent: user and system time
// of trainer, sidecar and engines, from before the update until all serve. What `wsync push
// --trace` takes itself stands beside it. The interval is of the median, of at least 95 %
// (harness/median_interval.h). The target is met when the whole interval is at most 1 %, missed
// when it is above, open otherwise.
//
// Making spans: the spans of an update are made and kept once more in a ring that is full. That is
// an estimate from below: their texts are copied, not composed, and counters (an addition each) are
// not in it.
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

// How an update is watched. A round has two of each, the second half in the reverse order of the
// first.
enum class Watching : std::uint8_t {
  kNot,    // a fleet that makes no spans and serves no pages
  kKept,   // a fleet as it is by default, in which nobody asks
  kAsked,  // the same fleet: scraped when the update begins and then once a second, and `wsync push
           // --trace` writes what it has traced
};
inline constexpr std::array kWatchings = {Watching::kNot, Watching::kKept, Watching::kAsked};
[[nodiscard]] std::string_view watching_name(Watching watching) noexcept;  // "not", "kept", "asked"

// Means of a round's two updates of one kind.
struct WatchedUpdate {
  std::chrono::nanoseconds cpu{0};          // of trainer, sidecar and engines, user and system
  std::chrono::nanoseconds command_cpu{0};  // of `wsync push`
  std::uint64_t paused_ns = 0;
  double pages = 0;  // that were scraped
};

struct OverheadRound {
  unsigned fleets = 0;      // which pair of fleets, from 0: they are started anew now and then
  std::uint64_t spans = 0;  // of trainer and sidecar in the trace that was written last
  // Processor time of making those spans once more, and keeping them in a ring that is full.
  std::chrono::nanoseconds making{0};
  std::array<WatchedUpdate, kWatchings.size()> updates;  // by Watching
  [[nodiscard]] const WatchedUpdate& of(Watching watching) const {
    return updates[static_cast<std::size_t>(watching)];
  }
  // By how much more processor time the update took, in percent of the other one's.
  [[nodiscard]] double percent(Watching watching, Watching beside) const;
};

enum class OverheadVerdict : std::uint8_t {
  kMet,     // the whole interval is at most the target
  kMissed,  // the whole interval is above it
  kOpen,    // the interval has the target in it, or there are too few pairs for one
};
[[nodiscard]] std::string_view verdict_name(OverheadVerdict verdict) noexcept;

// Paired differences of all rounds. The target is of kAsked beside kKept: one fleet, whose memory
// is the same for both. Two fleets differ by more than that, by where their memory came to lie.
struct Overhead {
  Watching watching = Watching::kAsked;
  Watching beside = Watching::kKept;
  Spread percent;
  std::optional<MedianInterval> interval;  // of the median, kOverheadConfidence at least
  [[nodiscard]] bool has_target() const noexcept {
    return watching == Watching::kAsked && beside == Watching::kKept;
  }
  [[nodiscard]] OverheadVerdict verdict() const;
};

struct OverheadBenchOptions {
  std::string executable;                // wsync
  std::string directory;                 // for everything that is made; the owner removes it
  std::vector<std::string> checkpoints;  // two, of equal layouts and different bytes
  std::uint64_t bytes = 0;               // of one of them
  unsigned engines = 1;
  unsigned rounds = 30;
  // Rounds after which both fleets are started anew: where their memory came to lie stays for a
  // fleet's life, and would be taken for a cost of watching.
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

// Bytes that two fleets take at most. kResourceExhausted, with how much is needed, where they are
// not there.
[[nodiscard]] Result<> check_overhead_memory(std::uint64_t model_bytes, unsigned engines);

// Two fleets are alive at the same time; the order of the updates is turned round with each round.
// kInvalidInput without two checkpoints; kInternal when the fleet that is not watched has
// spans, or the other has none; else as run_sync_bench().
[[nodiscard]] Result<OverheadBenchResult> run_overhead_bench(
    const OverheadBenchOptions& options, const Interrupt& interrupt,
    const std::function<void(std::string_view label, unsigned done, unsigned total)>& on_progress);

}  // namespace wsync::bench
