// Compares arenas in pages of 4 KiB with arenas in huge pages: how long a GPU's driver takes to
// register one, and how fast the GPU reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/copies.h"
#include "bench/harness/spread.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct PageSizeCase {
  std::string pages;  // "4 KiB", "huge, on request" or "huge, of the pool"
  std::uint32_t gpu = 0;
  std::uint64_t bytes = 0;
  std::string missing;         // why the system gives no such pages; empty: it does
  std::string fallback;        // why the driver did not register the memory; empty: it did
  std::vector<double> taken;   // seconds to register all bytes, in each round
  std::vector<double> copied;  // bytes per second from the arena to the GPU
  Spread register_s, rate;
  [[nodiscard]] bool measured() const noexcept { return missing.empty(); }
};

// Arenas of options.bytes bytes, mapped as a sidecar maps them (staged_arena.h). Their order
// changes with each round. The bytes that arrive are compared: kDigestMismatch. Needs 3 * bytes of
// host memory.
[[nodiscard]] Result<std::vector<PageSizeCase>> run_page_sizes(const CopyOptions& options,
                                                               const Interrupt& interrupt,
                                                               const OnGpuProgress& on_progress);

}  // namespace wsync::bench
