// The copy floor: how fast private memories can be filled at all, from one shared mapping, with the
// copy that engines use. What `wsync demo` holds its own figures against.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "shared/base/error.h"

namespace wsync::cli {

struct FloorRounds {
  std::uint64_t bytes = 0;  // copied by each copier in each round
  unsigned copiers = 0;
  std::vector<std::chrono::nanoseconds> rounds;  // from the common start to the last one's end
};

// `copiers` threads, each of which copies the same `bytes` from one shared mapping into touched
// private memory of its own, `rounds` times. Copies less at a time when the memory that is
// available would not do. kResourceExhausted, or kCancelled soon after `cancelled` is set.
// Thread: any; blocks it.
[[nodiscard]] Result<FloorRounds> measure_copy_floor(std::uint64_t bytes, unsigned copiers,
                                                     unsigned rounds,
                                                     const std::atomic<bool>& cancelled);

// Rounds of several measurements, as one figure.
class CopyFloor {
 public:
  void add(const FloorRounds& measured);
  // Into all copiers together; 0 before the first add().
  [[nodiscard]] double bytes_per_s() const;  // the median
  [[nodiscard]] double slowest() const { return rates_.empty() ? 0 : rates_.front(); }
  [[nodiscard]] double fastest() const { return rates_.empty() ? 0 : rates_.back(); }
  [[nodiscard]] std::size_t rounds() const noexcept { return rates_.size(); }
  // Of the latest measurement.
  [[nodiscard]] std::uint64_t copied_bytes() const noexcept { return bytes_; }
  [[nodiscard]] unsigned copiers() const noexcept { return copiers_; }

 private:
  std::vector<double> rates_;  // in order
  std::uint64_t bytes_ = 0;
  unsigned copiers_ = 0;
};

}  // namespace wsync::cli
