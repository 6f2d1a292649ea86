// `wsync bench transport` measures the product's data transports on this host, with plain transfers
// of the same bytes as the baseline. How to read the table, and limits: deploy/guides/benchmark.md.
//
// --size bytes are transferred as one version from a trainer's memory to a sidecar's, both threads
// of one process. Every byte is compared afterwards. CPU is the processor time of all ends per 10^9
// bytes.
//
//   memfd, handed over: from the sidecar's request until it has mapped the arena, including the
//     page table, by two threads. Nothing is copied. Baseline: mapping a full memfd with one
//     thread.
//   memfd, handed over and copied: followed by a copy into private memory by one thread, as engines
//     do. Baseline: the streaming copy. A sidecar maps a version once, before engines pause.
//   TCP streams: from the request until all buckets have arrived, for each --bucket and
//     --connections. A digest of every bucket is computed at the source and checked at the sink.
//     Baseline: one bare loopback connection without digests.
//   TLS streams: the same with TLS 1.3 on each connection, as between hosts.
//     Baseline: TCP streams of the same shape.
//   TCP relay: the same through a sidecar that forwards each bucket as soon as it has received it,
//     with the first --bucket and the last --connections. Both hops share this machine's cores.
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
// Per transfer, because a sink keeps state for each bucket.
inline constexpr std::uint64_t kTransportBucketsMax = 1ULL << 20U;

struct TransportBenchOptions {
  std::string directory;                // for a socket; mode 0700, the owner removes it
  std::uint64_t bytes = 256ULL << 20U;  // bytes per transfer; rounded up to a page
  std::vector<std::uint64_t> bucket_bytes = {1ULL << 20U, 8ULL << 20U, 64ULL << 20U};
  std::vector<unsigned> connections = {1, 4};  // TCP
  unsigned rounds = 15;
};

// All cases take turns (measure_in_turns()), after one round that is not counted. kInvalidInput if
// a number is out of range, kResourceExhausted if there is too little memory. Errors of the
// transports. kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_transport_bench(const TransportBenchOptions& options,
                                                      const Interrupt& interrupt,
                                                      const OnTurn& on_turn);

}  // namespace wsync::bench
