// `wsync bench gpu`: what the GPUs of this machine do against what they can do. How to read the
// table, and limits: deploy/guides/benchmark.md.
//
// Copies (copies.h): ours and its ceiling in pairs. Rates are bytes of the model a second; a copy
// on the GPU moves each twice. Both sides are timed by the host's clock, from before the first call
// until the last copy is known to be complete, so ours has its threads, queues and polling in it. A
// sample repeats its copy for about 50 ms.
//
//   H2D: Stream::copy_to_device from an arena (a shared memory file), registered in place;
//     beside cuMemcpyHtoDAsync from memory of cuMemAllocHost.
//   reload: Stream::copy_pieces of the tensors of transformer layers, some by columns, with a
//     digest of each in the same pass (batch.h); beside cuMemcpyAsync of as many bytes on the
//     GPU.
//   reload in another process: the same out of memory that another process has mapped by its IPC
//     handle, in a process of its own, behind the event of publish() (reader.h).
//   digest: copy_pieces without a destination; beside a kernel that reads as many bytes and does
//     nothing else.
//
// Updates (pipelines.h): the sidecar's pipeline with a process for each device that maps the IPC
// buffers and copies each bucket out as it is told. Each stage is also measured alone with every
// bucket, on all devices at once (stages.h): a broadcast has its digests in it, a reload the
// messages to the processes. The ratio is of the whole update, first copy to last bucket
// acknowledgement, to the longest of its stages alone.
//
// Pause (pause.h): a fleet as of `wsync bench sync`, for an engine on the first GPU and one on
// each.
//
// Each batch's digests are compared with those that the host computed of the arena, in every sample
// and for every bucket of every update. Where memory is short, model and buffers are smaller than
// asked; the result has both. Without a GPU: exit 3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/copies.h"
#include "bench/gpu/pause.h"
#include "bench/gpu/pipelines.h"
#include "bench/harness/machine.h"
#include "shared/base/error.h"
#include "shared/device/cuda_library.h"

namespace wsync::bench {

struct GpuBenchOptions {
  std::string executable;                          // wsync
  std::string directory;                           // for logs and sockets; the owner removes it
  std::vector<std::uint32_t> gpus;                 // empty: all
  std::uint64_t buffer_bytes = 0;                  // of one copy, and of a buffer at most
  std::uint64_t bytes = 0;                         // of the model
  std::vector<std::uint32_t> devices = {1, 2, 4};  // logical devices on the first GPU
  unsigned rounds = 15;                            // pairs of a ceiling and ours
  unsigned updates = 5;                            // rounds of the pipeline, and of the pause
  std::vector<std::string> checkpoints;  // two, of equal layouts, for the pause; empty: none
};

struct GpuBenchResult {
  Machine machine;
  device::CudaFacts cuda;
  bool emulated = false;  // no GPU at all: the tests' driver
  std::vector<CopyCase> copies;
  std::vector<PipelineCase> pipelines;
  std::vector<PauseCase> pauses;
  std::vector<std::string> notes;  // what could not be as it should
  double others_busy = 0;          // share of the cores' time that was used before it began
  double stolen = 0;               // share that the host withheld
};

// What is missing for GPUs, in one sentence; empty when a GPU can be used.
[[nodiscard]] std::string missing_gpu();

// Takes minutes. kRefused without a GPU, or with one in options.gpus that is not there;
// kDigestMismatch when a byte arrived wrong; kCancelled on a signal, leaving no process.
[[nodiscard]] Result<GpuBenchResult> run_gpu_bench(const GpuBenchOptions& options,
                                                   const Interrupt& interrupt,
                                                   const OnGpuProgress& on_progress);

}  // namespace wsync::bench
