// Copy floor: the highest rate at which private memories can be filled from one shared mapping with
// the copy function that engines use. `wsync demo` compares its own figures with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "bench/harness/spread.h"
#include "shared/base/error.h"

namespace wsync::cli {

class CopyFloor {
 public:
  // Runs `copiers` threads. In each of `rounds` rounds, each of as many private memories, which
  // have been touched before, gets a copy of the same `bytes` of one arena. Reduces `bytes` if the
  // copies would need more than half of the available memory. Errors: kResourceExhausted;
  // kCancelled soon after `cancelled` is set. Thread: any; blocks it.
  [[nodiscard]] Result<> measure(std::uint64_t bytes, unsigned copiers, unsigned rounds,
                                 const std::atomic<bool>& cancelled);
  // Rates of all rounds of all measurements, each into all private memories together.
  [[nodiscard]] bench::Spread bytes_per_s() const { return bench::spread_of(rates_); }
  // Bytes of one copy in the latest measurement.
  [[nodiscard]] std::uint64_t copied_bytes() const noexcept { return bytes_; }

 private:
  std::vector<double> rates_;
  std::uint64_t bytes_ = 0;
};

}  // namespace wsync::cli
