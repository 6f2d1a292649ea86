#include "bench/harness/spread.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace wsync::bench {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(at));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Spread spread_of(std::span<const double> sample) {
  if (sample.empty()) return {};
  std::vector<double> sorted(sample.begin(), sample.end());
  std::sort(sorted.begin(), sorted.end());
  return {.count = sorted.size(),
          .min = sorted.front(),
          .lower_quartile = quantile(sorted, 0.25),
          .median = quantile(sorted, 0.5),
          .upper_quartile = quantile(sorted, 0.75),
          .p99 = quantile(sorted, 0.99),
          .max = sorted.back()};
}

}  // namespace wsync::bench
