// Compares whole updates of a group of devices, with two and with three stages, with the longest of
// their stages alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/copies.h"
#include "bench/harness/spread.h"
#include "shared/base/error.h"
#include "shared/broadcast/communicator.h"

namespace wsync::bench {

inline constexpr double kThreeStageTarget = 1.10;

struct PipelineCase {
  std::vector<std::uint32_t> gpus;  // GPU of each device; several devices may use the same GPU
  std::uint64_t buffer_bytes = 0;
  std::uint64_t bytes = 0;  // bytes of the model
  // Seconds for the whole model.
  struct Round {
    double h2d = 0;
    double broadcast = 0;
    double reload = 0;
    double two_stages = 0;
    double three_stages = 0;
    [[nodiscard]] double longest() const;
  };
  std::vector<Round> rounds;
  Spread h2d, broadcast, reload, two_stages, three_stages;
  Spread two_ratio, three_ratio;  // to the longest stage of the round; smaller is better
  [[nodiscard]] bool met() const noexcept { return three_ratio.median <= kThreeStageTarget; }
};

struct PipelineCaseOptions {
  std::string executable;  // wsync
  std::string directory;   // for logs
  std::vector<std::uint32_t> gpus;
  // requested bytes of the model; smaller if the host's memory is too small
  std::uint64_t bytes = 0;
  std::uint64_t buffer_bytes = 0;  // maximum bytes per buffer
  unsigned rounds = 5;
  // of groups of several devices; unset: NCCL for different GPUs, plain copies otherwise
  std::optional<collective::GroupKind> collective;
};

// One engine process per device reads every bucket. Its result is checked each time:
// kDigestMismatch. kResourceExhausted if not even buffers of 2 MiB fit.
[[nodiscard]] Result<PipelineCase> run_pipeline_case(const PipelineCaseOptions& options,
                                                     const Interrupt& interrupt,
                                                     const OnGpuProgress& on_progress);

// Returns the bytes of the model: at most `wanted` and at most half of the host's free memory, in
// whole granules of 2 MiB.
[[nodiscard]] Result<std::uint64_t> model_bytes(std::uint64_t wanted);

}  // namespace wsync::bench
