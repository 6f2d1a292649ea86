// `wsync bench baseline`: what this machine's memory, links, files and GPUs can do at all. What
// each figure means: bench/README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/baseline/workbench.h"
#include "bench/harness/machine.h"
#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr std::uint64_t kBaselineBytesMin = 1ULL << 20U;
inline constexpr std::uint64_t kBaselineBytesMax = 1ULL << 36U;

struct BaselineBenchOptions {
  std::string directory;                // on the disk that is read; the owner removes it
  std::uint64_t bytes = 256ULL << 20U;  // of one measurement; rounded up to a page
  unsigned rounds = 15;
  bool gpus = true;  // measure them, if there are any
};

// Bytes of each measurement with --quick: more than the last-level caches have, up to half a GiB.
[[nodiscard]] std::uint64_t quick_baseline_bytes(std::uint64_t cache_bytes) noexcept;
// What to say of measurements of so many bytes beside caches of so many (0: not known); empty where
// there is nothing to say.
[[nodiscard]] std::string cache_note(std::uint64_t bytes, std::uint64_t cache_bytes);

// Samples of rows that take turns, one each round; a row that may run out and did is none, with the
// reason in its place.
struct RowSamples {
  std::vector<double> samples;  // GiB/s
  std::string left_out;         // empty: it was not
};
[[nodiscard]] Result<std::vector<RowSamples>> measure_rows(const BaselineRows& rows,
                                                           std::uint64_t bytes, unsigned rounds,
                                                           const Interrupt& interrupt,
                                                           const OnTurn& on_turn);

// All rows take turns (measure_in_turns()), after one round that is not counted; ratios are to
// memcpy by one thread in the same round. kInvalidInput for a size out of range,
// kResourceExhausted where it does not fit in memory, kDigestMismatch when bytes arrive otherwise,
// kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_baseline_bench(const BaselineBenchOptions& options,
                                                     const Interrupt& interrupt,
                                                     const OnTurn& on_turn);

}  // namespace wsync::bench
