// What one GPU does against what it can do: copies from pinned host memory, copies and digests on
// the GPU, and copies out of another process's buffers.
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
inline constexpr double kReloadTarget = 0.90;
inline constexpr double kDigestTarget = 0.80;

// Pairs of the ceiling and of ours, each with the same bytes; which comes first changes with each
// round.
struct CopyCase {
  std::string name;     // "H2D", "reload", "digest", "reload in another process"
  std::string ceiling;  // what it is compared with
  std::uint32_t gpu = 0;
  std::uint64_t bytes = 0;            // of one copy
  unsigned times = 1;                 // copies of a sample, one behind the other
  double target = 0;                  // of the ratio
  std::vector<double> ceiling_rates;  // bytes a second, of each round
  std::vector<double> rates;
  Spread ceiling_rate, rate, ratio;
  [[nodiscard]] bool met() const noexcept { return ratio.median >= target; }
};

struct CopyOptions {
  std::string executable;  // wsync
  std::string directory;   // for logs
  std::uint32_t gpu = 0;
  std::uint64_t bytes = 0;  // of one copy; a multiple of 16
  unsigned rounds = 15;
  double sample_seconds = 0.05;  // a sample repeats its copy for about so long
};

// Told what goes on: a label, and how many of how many steps are done.
using OnGpuProgress = std::function<void(std::string_view label, unsigned done, unsigned total)>;

// Every copy is also checked: a check that differs from the host's is kDigestMismatch. Takes
// pinned and pageable host memory of 2 * bytes, and 5 * bytes on the GPU. `notes` gets a line when
// the host memory could not be registered.
[[nodiscard]] Result<std::vector<CopyCase>> run_copies(const CopyOptions& options,
                                                       const device::CudaBackend& backend,
                                                       const Interrupt& interrupt,
                                                       const OnGpuProgress& on_progress,
                                                       std::vector<std::string>& notes);

// Bytes that differ from place to place and from seed to seed.
void fill_with_noise(std::span<std::byte> bytes, std::uint64_t seed);

}  // namespace wsync::bench
