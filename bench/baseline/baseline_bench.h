// `wsync bench baseline` measures what memory, links, files and GPUs of this machine can do. How to
// read the table, and limits: deploy/guides/benchmark.md.
//
// Every case is a rate: GiB of --size per second. One round is one measurement of each case. After
// each measurement, outside of the measured time, every received byte is compared with what was
// sent. Each page of the source has a number that no earlier measurement used. For mapped and read
// bytes the digest is compared. Driver calls on GPUs are not checked here. `wsync bench gpu` checks
// the calls that updates use.
//
//   memcpy, streaming copy, N threads: private memory to private memory in equal parts, with huge
//     pages if available. N is 1, 2 and all cores. Each N has its own memory, and the thread that
//     copies a part has touched it first. The streaming copy is shared/base/stream_copy.h, as
//     engines use it.
//   first touch: one byte is written to each page of 4 KiB of new memory. Shared memory is a memfd.
//     A row of huge pages exists only if the kernel reports that at least half of the memory is in
//     huge pages. If they run out during the run, the row is left out with a note.
//   map filled: a full memfd is mapped for reading, and all entries of the page table are filled.
//   XXH3: the 128-bit digest of the bytes, by one thread.
//   loopback TCP, Unix socket, ZeroMQ ipc: from one thread's memory to another's, in pieces of 1
//     MiB. ZeroMQ is PUSH to PULL, and the sender's bytes are not copied into messages.
//   disk read: a file that was written and synced is read in pieces of 4 MiB without the page cache
//     (files.h). The host of a virtual machine may still have it in its own cache.
//   tmpfs read: a memfd with the same bytes, read with pread in pieces of 4 MiB.
//   H2D, D2D, GPU read: cuMemcpyHtoDAsync from memory of cuMemAllocHost, cuMemcpyAsync on the GPU,
//     and a kernel that only reads, for each GPU.
//   broadcast: one GPU's buffer to all GPUs.
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
  std::string directory;                // on the disk to be read; the owner removes it
  std::uint64_t bytes = 256ULL << 20U;  // bytes per measurement; rounded up to a page
  unsigned rounds = 15;
  bool gpus = true;  // measure GPUs if there are any
};

// Bytes per measurement with --quick: more than the last-level caches hold, up to half a GiB.
[[nodiscard]] std::uint64_t quick_baseline_bytes(std::uint64_t cache_bytes) noexcept;
// Returns a note about measurements of `bytes` bytes with caches of `cache_bytes` bytes (0:
// unknown). Empty if there is nothing to note.
[[nodiscard]] std::string cache_note(std::uint64_t bytes, std::uint64_t cache_bytes);

// Samples of rows that are measured in turns, one per round. A row that may run out, and did, has
// no samples but a reason.
struct RowSamples {
  std::vector<double> samples;  // GiB/s
  std::string left_out;         // reason if the row was left out; otherwise empty
};
[[nodiscard]] Result<std::vector<RowSamples>> measure_rows(const BaselineRows& rows,
                                                           std::uint64_t bytes, unsigned rounds,
                                                           const Interrupt& interrupt,
                                                           const OnTurn& on_turn);

// All rows take turns (measure_in_turns()), after one round that is not counted. Ratios are to
// memcpy by one thread in the same round. kInvalidInput if the size is out of range,
// kResourceExhausted if it does not fit in memory, kDigestMismatch if wrong bytes arrive,
// kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_baseline_bench(const BaselineBenchOptions& options,
                                                     const Interrupt& interrupt,
                                                     const OnTurn& on_turn);

}  // namespace wsync::bench
