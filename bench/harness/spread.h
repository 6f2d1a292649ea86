// What repeated measurements say: the middle, and how far they lie apart.
#pragma once

#include <cstddef>
#include <span>

namespace wsync::bench {

// Of a sample; all 0 for an empty one. Quartiles and the 99th percentile are interpolated between
// neighbours.
struct Spread {
  std::size_t count = 0;
  double min = 0;
  double lower_quartile = 0;
  double median = 0;
  double upper_quartile = 0;
  double p99 = 0;
  double max = 0;
  friend bool operator==(const Spread&, const Spread&) = default;
};

[[nodiscard]] Spread spread_of(std::span<const double> sample);

}  // namespace wsync::bench
