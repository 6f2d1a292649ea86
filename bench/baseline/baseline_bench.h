// `wsync bench baseline`: what this machine's memory, links, files and GPUs can do at all. How to
// read the table, and limits: deploy/guides/benchmark.md.
//
// Every case is a rate: GiB of --size a second. One round is one measurement of each case. After
// each measurement, outside of the time, every byte that arrived is compared with what was sent,
// each page of which has a number that was never there before; of what was mapped or read the
// digest is compared. Driver calls on GPUs are not checked here; `wsync bench gpu` checks those of
// updates.
//
//   memcpy, streaming copy, N threads: private memory to private memory in equal parts, with
//     huge pages where there are any. N is 1, 2 and all cores. Each N has memory of its own, and
//     the thread that copies a part has touched it first. The streaming copy is
//     shared/base/stream_copy.h, as engines use it.
//   first touch: one byte is written to each page of 4 KiB of new memory; shared memory is a
//     memfd. A row of huge pages is there only where the kernel says that at least half of the
//     memory came in such pages. When they run out during the run, the row is left out with a
//     note.
//   map filled: a full memfd is mapped for reading, and all entries of the page table are made.
//   XXH3: the 128-bit digest of the bytes, by one thread.
//   loopback TCP, Unix socket, ZeroMQ ipc: from one thread's memory to another's, in pieces of 1
//     MiB. ZeroMQ is PUSH to PULL; the sender's bytes are not copied into messages.
//   disk read: a file that was written and synced, read in pieces of 4 MiB past the page cache
//     (files.h). The host of a virtual machine may still have it in its own cache.
//   tmpfs read: a memfd with the same bytes, read with pread in pieces of 4 MiB.
//   H2D, D2D, GPU read: cuMemcpyHtoDAsync from memory of cuMemAllocHost, cuMemcpyAsync on the
//     GPU, a kernel that only reads; for each GPU.
//   broadcast: one GPU's buffer to all, with the digests that an update takes of it.
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
