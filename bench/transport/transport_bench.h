// `wsync bench transport`: the product's data transports on this host, beside what moves the same
// bytes without them. What each figure means: bench/README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr std::uint64_t kTransportBytesMin = 1ULL << 20U;
inline constexpr std::uint64_t kTransportBytesMax = 1ULL << 36U;
inline constexpr std::uint64_t kTransportBucketBytesMin = 1ULL << 16U;
// Of one transfer: a sink keeps state for each.
inline constexpr std::uint64_t kTransportBucketsMax = 1ULL << 20U;

struct TransportBenchOptions {
  std::string directory;                // for a socket; of mode 0700, the owner removes it
  std::uint64_t bytes = 256ULL << 20U;  // of one transfer; rounded up to a page
  std::vector<std::uint64_t> bucket_bytes = {1ULL << 20U, 8ULL << 20U, 64ULL << 20U};
  std::vector<unsigned> connections = {1, 4};  // TCP
  unsigned rounds = 15;
};

// All take turns (measure_in_turns()), after one round that is not counted. kInvalidInput for
// numbers out of range, kResourceExhausted where memory is short; errors of the transports;
// kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_transport_bench(const TransportBenchOptions& options,
                                                      const Interrupt& interrupt,
                                                      const OnTurn& on_turn);

}  // namespace wsync::bench
