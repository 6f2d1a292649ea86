// Copy floor: the highest rate at which private memories can be filled from one shared mapping with
// the copy function that engines use. `wsync demo` compares its own figures with it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "shared/base/error.h"

namespace wsync::cli {

struct FloorRounds {
  std::uint64_t bytes = 0;  // copied by each copier per round
  unsigned copiers = 0;
  // Each from the common start to the end of the last copier.
  std::vector<std::chrono::nanoseconds> rounds;
};

// Runs `copiers` threads. In each of `rounds` rounds every thread copies the same `bytes` from one
// shared mapping into its own private memory, which has been touched before. Reduces `bytes` if the
// copies would need more than half of the available memory. Errors: kResourceExhausted; kCancelled
// soon after `cancelled` is set. Thread: any; blocks it.
[[nodiscard]] Result<FloorRounds> measure_copy_floor(std::uint64_t bytes, unsigned copiers,
                                                     unsigned rounds,
                                                     const std::atomic<bool>& cancelled);

// Combines the rounds of several measurements into one figure.
class CopyFloor {
 public:
  void add(const FloorRounds& measured);
  // Median rate into all copiers together; 0 before the first add().
  [[nodiscard]] double bytes_per_s() const;
  [[nodiscard]] double slowest() const { return rates_.empty() ? 0 : rates_.front(); }
  [[nodiscard]] double fastest() const { return rates_.empty() ? 0 : rates_.back(); }
  [[nodiscard]] std::size_t rounds() const noexcept { return rates_.size(); }
  // Bytes per copier and round in the latest measurement.
  [[nodiscard]] std::uint64_t copied_bytes() const noexcept { return bytes_; }
  [[nodiscard]] unsigned copiers() const noexcept { return copiers_; }

 private:
  std::vector<double> rates_;  // sorted
  std::uint64_t bytes_ = 0;
  unsigned copiers_ = 0;
};

}  // namespace wsync::cli
