// Whether one sample lies beside another: the rank-sum test (H. B. Mann and D. R. Whitney, "On a
// Test of Whether one of Two Random Variables is Stochastically Larger than the Other", Annals of
// Mathematical Statistics 18, 1947). Equal values share the mean of their ranks.
#pragma once

#include <cstddef>
#include <span>

namespace wsync::bench {

// Up to so many values in each sample the distribution is counted out over all ways to deal these
// ranks, equal ones included, to the two samples (B. Streitberg and J. Roehmel, "Exact
// Distributions for Permutation and Rank Tests", Statistical Software Newsletter 12, 1986); beyond,
// it is taken as normal with the variance that ties leave.
inline constexpr std::size_t kExactSamplesMax = 30;

struct RankSumTest {
  // Probability, were both drawn from one distribution, of ranks that differ as much as these or
  // more, to either side.
  double chance = 1;
  // The least that it could have been: with all values of one sample below those of the other, as
  // far as equal ones allow. Two small samples cannot say much, however far they lie apart.
  double least_chance = 1;
};
// Both 1 when one of them is empty.
[[nodiscard]] RankSumTest rank_sum_test(std::span<const double> a, std::span<const double> b);

}  // namespace wsync::bench
