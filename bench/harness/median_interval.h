// How well a sample knows the median of what it was drawn from, whatever that distribution is:
// between the k-th smallest and the k-th largest value (W. R. Thompson, "On Confidence Ranges for
// the Median and other Expectation Distributions for Populations of Unknown Distribution Form",
// Annals of Mathematical Statistics 7, 1936; the same as turning round the sign test).
#pragma once

#include <optional>
#include <span>

namespace wsync::bench {

struct MedianInterval {
  double low = 0;
  double high = 0;
  double confidence = 0;  // that the median lies in it: at least what was asked for
};

// The narrowest such interval of at least that confidence (above 0, below 1). Nothing where even
// the least and the largest value lie around the median less often: below six values for 0.95.
[[nodiscard]] std::optional<MedianInterval> median_interval(std::span<const double> sample,
                                                            double confidence = 0.95);

}  // namespace wsync::bench
