// `wsync bench gpu` compares the GPUs of this machine with their hardware limits. How to read the
// table, and limits: deploy/guides/benchmark.md.
//
// Copies (copies.h): the product and its upper limit in pairs. Rates are bytes of the model per
// second; a copy on the GPU both reads and writes each byte. Both sides are timed by the host's
// clock, from before the first call until the last copy is known to be complete. The product's time
// therefore includes its threads, queues and polling. A sample repeats its copy for about 50 ms.
//
//   H2D: Stream::copy_to_device from an arena (a shared memory file), registered in place. Limit:
//     cuMemcpyHtoDAsync from memory of cuMemAllocHost.
//   reload: Stream::copy_pieces of the tensors of transformer layers, some by columns, with a
//     sum of each in the same pass (batch.h). Limit: cuMemcpyAsync of as many bytes on the GPU.
//   reload in another process: the same copy out of memory that a separate process has mapped
//     (reader.h).
//   sum: copy_pieces without a destination. Limit: a kernel that only reads as many bytes.
//
// Arenas are mapped as a sidecar maps those of a trainer: read-only, through a shared descriptor
// (staged_arena.h). They ask for huge pages, as the default of memory.huge_pages does.
//
// Page sizes (page_sizes.h): the time in which an arena is registered with the GPU, and the speed
// of H2D copies from it, in pages of 4 KiB, in huge pages that the system gives on request, and in
// huge pages of the pool. What the system does not give is not measured.
//
// Updates (pipelines.h): the sidecar's pipeline with a process per device that maps the IPC buffers
// and copies out each bucket on command. Each stage is also measured alone with every bucket, on
// all devices at once (stages.h). A reload includes the
// messages to the processes. The ratio compares the whole update, from the first copy to the last
// bucket acknowledgement, with the longest of its stages alone.
//
// Pause (pause.h): a fleet as in `wsync bench sync`, with an engine on the first GPU and with one
// on each GPU; then one that switches by patches where it can, with all bytes, 0.1 % and 1 % of the
// elements changed in the same rounds.
//
// Each batch's sums are compared with those that the host computed from the arena, in every
// sample and for every bucket of every update. If there is too little memory, model and buffers are
// smaller than requested. The result has both sizes. Without a GPU: exit 3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/copies.h"
#include "bench/gpu/page_sizes.h"
#include "bench/gpu/pause.h"
#include "bench/gpu/pipelines.h"
#include "bench/harness/machine.h"
#include "shared/base/error.h"
#include "shared/device/cuda_library.h"

namespace wsync::bench {

struct GpuBenchOptions {
  std::string executable;                           // wsync
  std::string directory;                            // for logs and sockets; the owner removes it
  std::vector<std::uint32_t> gpus;                  // empty: all
  std::uint64_t buffer_bytes = 0;                   // bytes per copy, and maximum bytes per buffer
  std::uint64_t bytes = 0;                          // bytes of the model
  std::vector<std::uint32_t> devices = {1, 2, 4};   // logical devices on the first GPU
  std::optional<collective::GroupKind> collective;  // as in PipelineCaseOptions
  unsigned rounds = 15;                             // pairs of samples
  unsigned updates = 5;                             // rounds of the pipeline and of the pause
  // two, with equal layouts, for the pause; empty: no pause
  std::vector<std::string> checkpoints;
};

struct GpuBenchResult {
  Machine machine;
  device::CudaFacts cuda;
  bool emulated = false;  // the tests' driver without any GPU
  std::vector<CopyCase> copies;
  std::vector<PageSizeCase> page_sizes;
  std::vector<PipelineCase> pipelines;
  std::vector<PauseCase> pauses;
  std::vector<std::string> notes;  // deviations from the requested run
  // share of the cores' time that other processes used before the run
  double others_busy = 0;
  double stolen = 0;  // share that the host withheld
};

// Returns what is missing for GPUs in one sentence. Empty if a GPU can be used.
[[nodiscard]] std::string missing_gpu();

// Takes minutes. kRefused without a GPU or if options.gpus names one that does not exist;
// kDigestMismatch if a wrong byte arrived; kCancelled on a signal, leaving no process.
[[nodiscard]] Result<GpuBenchResult> run_gpu_bench(const GpuBenchOptions& options,
                                                   const Interrupt& interrupt,
                                                   const OnGpuProgress& on_progress);

}  // namespace wsync::bench
