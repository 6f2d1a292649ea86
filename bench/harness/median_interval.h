// A confidence interval for the median of any distribution: from the k-th smallest to the k-th
// largest value of a sample (W. R. Thompson, "On Confidence Ranges for the Median and other
// Expectation Distributions for Populations of Unknown Distribution Form", Annals of Mathematical
// Statistics 7, 1936). It is the inversion of the sign test.
#pragma once

#include <optional>
#include <span>

namespace wsync::bench {

struct MedianInterval {
  double low = 0;
  double high = 0;
  // probability that the interval contains the median; at least the requested one
  double confidence = 0;
};

// Returns the narrowest such interval with at least that confidence (above 0, below 1). Returns
// std::nullopt if even the interval from the minimum to the maximum has less: below six values for
// 0.95.
[[nodiscard]] std::optional<MedianInterval> median_interval(std::span<const double> sample,
                                                            double confidence = 0.95);

}  // namespace wsync::bench
