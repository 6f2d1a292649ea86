// `wsync bench codecs`: digests, checksums, conversions and parsers that a model passes on its way,
// beside copies of the same bytes. What each figure means: bench/README.md.
#pragma once

#include <cstdint>
#include <string>

#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr std::uint64_t kCodecBytesMin = 1ULL << 20U;
inline constexpr std::uint64_t kCodecBytesMax = 1ULL << 36U;

struct CodecsBenchOptions {
  std::uint64_t bytes = 256ULL << 20U;  // of one measurement; rounded up to a page
  std::string model = "Qwen3-30B-A3B";  // whose header, index and layout are read
  unsigned rounds = 15;
};

// All take turns (measure_in_turns()), after one round that is not counted. kInvalidInput for a
// size out of range or a model without a name here, kResourceExhausted where memory is short,
// kDigestMismatch for a wrong result; kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_codecs_bench(const CodecsBenchOptions& options,
                                                   const Interrupt& interrupt,
                                                   const OnTurn& on_turn);

}  // namespace wsync::bench
