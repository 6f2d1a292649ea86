// Whether one sample lies beside another: the rank-sum test (H. B. Mann and D. R. Whitney, "On a
// Test of Whether one of Two Random Variables is Stochastically Larger than the Other", Annals of
// Mathematical Statistics 18, 1947).
#pragma once

#include <cstddef>
#include <span>

namespace wsync::bench {

// Up to so many values in each sample, and without equal ones, the distribution is counted out;
// beyond, and with ties, it is taken as normal with the variance that ties leave.
inline constexpr std::size_t kExactSamplesMax = 30;

// Probability, were both drawn from one distribution, of ranks that differ as much as these or
// more, to either side. 1 when one of them is empty.
[[nodiscard]] double rank_sum_probability(std::span<const double> a, std::span<const double> b);

}  // namespace wsync::bench
