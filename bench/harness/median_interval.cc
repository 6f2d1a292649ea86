#include "bench/harness/median_interval.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace wsync::bench {
namespace {

// P(X = k), where X is the number of n values below the median. X is binomial with probability one
// half. Computed with logarithms, so that large n neither overflows nor underflows.
double chance_below(std::size_t n, std::size_t k) {
  const auto all = static_cast<double>(n);
  const auto below = static_cast<double>(k);
  return std::exp(std::lgamma(all + 1) - std::lgamma(below + 1) - std::lgamma(all - below + 1) -
                  all * std::log(2.0));
}

}  // namespace

std::optional<MedianInterval> median_interval(std::span<const double> sample, double confidence) {
  std::vector<double> sorted(sample.begin(), sample.end());
  std::ranges::sort(sorted);
  std::optional<MedianInterval> found;
  // probability outside of the interval from the k-th smallest to the k-th largest value, both
  // sides
  double outside = 0;
  for (std::size_t k = 1; 2 * k <= sorted.size(); ++k) {
    outside += 2 * chance_below(sorted.size(), k - 1);
    if (1 - outside < confidence) break;
    found = {.low = sorted[k - 1], .high = sorted[sorted.size() - k], .confidence = 1 - outside};
  }
  return found;
}

}  // namespace wsync::bench
