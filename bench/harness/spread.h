// Summary of repeated measurements: the median and the variation.
#pragma once

#include <cstddef>
#include <span>

namespace wsync::bench {

// Spread of a sample. All values are 0 if it is empty. Quartiles and the 99th percentile are
// interpolated between neighbours.
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
