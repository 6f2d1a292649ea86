// Compares one GPU with its hardware limits: copies from pinned host memory, a trainer's snapshot
// of weights on the GPU, copies and sums on the GPU, and copies out of another process's buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gpu/reader.h"
#include "bench/harness/spread.h"
#include "shared/base/error.h"
#include "shared/device/cuda_library.h"

namespace wsync::bench {

inline constexpr double kH2DTarget = 0.95;
inline constexpr double kPublishTarget = 0.90;
// Of copying the F32 as they are: half of the bytes travel.
inline constexpr double kConvertTarget = 1.60;
inline constexpr double kReloadTarget = 0.90;
inline constexpr double kSumTarget = 0.80;

// Pairs of samples of the upper limit and of the product, with the same bytes. Their order changes
// with each round.
struct CopyCase {
  // "H2D", "publish", "publish of F32 as BF16", "reload", "sum", "reload in another process"
  std::string name;
  std::string ceiling;  // the upper limit with which it is compared
  std::uint32_t gpu = 0;
  std::uint64_t bytes = 0;            // bytes per copy
  unsigned times = 1;                 // copies per sample, one after the other
  double target = 0;                  // minimum ratio
  std::vector<double> ceiling_rates;  // bytes per second in each round
  std::vector<double> rates;
  Spread ceiling_rate, rate, ratio;
  [[nodiscard]] bool met() const noexcept { return ratio.median >= target; }
};

struct CopyOptions {
  std::string executable;  // wsync
  std::string directory;   // for logs
  std::uint32_t gpu = 0;
  std::uint64_t bytes = 0;  // bytes per copy; a multiple of 16
  unsigned rounds = 15;
  double sample_seconds = 0.05;  // approximate duration of a sample, which repeats its copy
};

// Called with a label and the numbers of finished and of all steps.
using OnGpuProgress = std::function<void(std::string_view label, unsigned done, unsigned total)>;

// Every copy is also checked: kDigestMismatch if a check differs from the host's. Needs 3.5 * bytes
// of pinned and pageable host memory and 5 * bytes on the GPU. Adds a line to `notes` if the host
// memory could not be registered.
[[nodiscard]] Result<std::vector<CopyCase>> run_copies(const CopyOptions& options,
                                                       const device::CudaBackend& backend,
                                                       const Interrupt& interrupt,
                                                       const OnGpuProgress& on_progress,
                                                       std::vector<std::string>& notes);

}  // namespace wsync::bench
