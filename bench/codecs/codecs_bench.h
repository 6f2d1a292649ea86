// `wsync bench codecs` measures the digests, checksums, conversions and parsers that a model passes
// through, with copies of the same bytes as the baseline. How to read the table, and limits:
// deploy/guides/benchmark.md.
//
// Everything runs in one thread. Each result is compared with one that was computed in another way.
//
//   XXH3, content digest, sum of words: they only read while memcpy also writes, so
//     ratios of up to 2 are correct.
//   copy with sum of words: the engine's copy, compared with the streaming copy.
//   bucket frames: the stream of the TCP transport is split into buckets of 4 MiB, with copies and
//     digests.
//   float32 to bfloat16, bfloat16 to float32: conversions for the trainer's export and for widening
//     weights, in GiB of float32. One side of the traffic is half of memcpy's.
//   make patch, apply patch: weights of which 0, 0.1, 1 or 5 % of the elements have changed at
//   random,
//     in GiB of the model, compared with the streaming copy of as many bytes. Making reads twice as
//     many; applying checks the patch and reads and writes what changed.
//   texts of --model: its safetensors header and checkpoint index (JSON), its layout and the header
//     of a bucket's frame, read and written, in MiB/s. The baseline is memcpy of the same bytes.
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
  std::uint64_t bytes = 256ULL << 20U;  // bytes per measurement; rounded up to a page
  std::string model = "Qwen3-30B-A3B";  // model whose header, index and layout are read
  unsigned rounds = 15;
};

// All cases take turns (measure_in_turns()), after one round that is not counted. kInvalidInput if
// the size is out of range or the model is unknown, kResourceExhausted if there is too little
// memory, kDigestMismatch if a result is wrong, kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_codecs_bench(const CodecsBenchOptions& options,
                                                   const Interrupt& interrupt,
                                                   const OnTurn& on_turn);

}  // namespace wsync::bench
