// `wsync bench gpu`: what the GPUs of this machine do against what they can do. What each figure
// means: bench/README.md.
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
