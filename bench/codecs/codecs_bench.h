// `wsync bench codecs`: digests, checksums, conversions and parsers that a model passes on its way,
// beside copies of the same bytes. How to read the table, and limits: deploy/guides/benchmark.md.
//
// All by one thread. Each result is checked against another way to compute it.
//
//   XXH3, content digest, checksum, piece digest: they only read, and memcpy writes as well, so
//     a ratio of up to 2 is no mistake.
//   copy with checksum: the engine's copy, beside the streaming copy.
//   bucket frames: the stream of the TCP transport is taken apart into buckets of 4 MiB, which
//     copies and digests.
//   float32 to bfloat16, bfloat16 to float32: as the trainer exports and as weights are widened;
//     GiB of float32. One side of the traffic is half of memcpy's.
//   texts of --model: its safetensors header and checkpoint index (JSON), its layout and the
//     header of a bucket's frame, read and written; MiB/s beside memcpy of the same bytes.
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
