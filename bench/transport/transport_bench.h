// `wsync bench transport`: the product's data transports on this host, beside what moves the same
// bytes without them. How to read the table, and limits: deploy/guides/benchmark.md.
//
// --size bytes go as one version from a trainer's memory to a sidecar's, both threads of one
// process; every byte is compared afterwards. CPU is processor time of all ends by 10^9 bytes.
//
//   memfd, handed over: from the sidecar's request until it has the arena mapped, page table
//     included, by two threads; nothing is copied. Beside mapping a full memfd with one thread.
//   memfd, handed over and copied: and then copied into private memory by one thread, as engines
//     do. Beside the streaming copy. A sidecar maps a version once, before engines pause.
//   TCP streams: from the request until all buckets are there, for each --bucket and
//     --connections. A digest of every bucket is taken at the source and checked at the sink.
//     Beside one bare loopback connection without digests.
//   TCP relay: the same through a sidecar that hands each bucket on as soon as it has it; first
//     --bucket, last --connections. Both hops share this machine's cores.
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
