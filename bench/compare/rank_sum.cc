#include "bench/compare/rank_sum.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace wsync::bench {
namespace {

struct Ranks {
  double u = 0;     // pairs (a, b) with a > b; equal ones count a half
  double ties = 0;  // sum of t^3 - t over groups of t equal values
};

Ranks ranks_of(std::span<const double> a, std::span<const double> b) {
  std::vector<std::pair<double, bool>> all;  // value, is of a
  for (const double value : a) all.emplace_back(value, true);
  for (const double value : b) all.emplace_back(value, false);
  std::sort(all.begin(), all.end());
  Ranks ranks;
  double rank_sum = 0;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].first == all[begin].first) ++end;
    const auto equal = static_cast<double>(end - begin);
    const double rank = static_cast<double>(begin) + (equal + 1) / 2;  // the mean of theirs
    for (std::size_t i = begin; i < end; ++i)
      if (all[i].second) rank_sum += rank;
    ranks.ties += equal * equal * equal - equal;
  }
  const auto count = static_cast<double>(a.size());
  ranks.u = rank_sum - count * (count + 1) / 2;
  return ranks;
}

// P(U <= u) for samples of n and m: the coefficients of the Gaussian binomial, by the recurrence
// over the largest value, which is of the one sample or of the other.
double exact_at_most(std::size_t n, std::size_t m, std::size_t u) {
  std::vector<std::vector<double>> before(m + 1);  // ways[m][u] for one value of n
  for (auto& ways : before) ways = {1};            // n = 0: u is 0
  for (std::size_t i = 1; i <= n; ++i) {
    std::vector<std::vector<double>> now(m + 1);
    now[0] = {1};
    for (std::size_t j = 1; j <= m; ++j) {
      now[j].assign(i * j + 1, 0);
      for (std::size_t k = 0; k < before[j].size(); ++k) now[j][k + j] += before[j][k];
      for (std::size_t k = 0; k < now[j - 1].size(); ++k) now[j][k] += now[j - 1][k];
    }
    before = std::move(now);
  }
  double below = 0;
  double all = 0;
  for (std::size_t k = 0; k < before[m].size(); ++k) {
    all += before[m][k];
    if (k <= u) below += before[m][k];
  }
  return below / all;
}

}  // namespace

double rank_sum_probability(std::span<const double> a, std::span<const double> b) {
  if (a.empty() || b.empty()) return 1;
  const Ranks ranks = ranks_of(a, b);
  const auto n = static_cast<double>(a.size());
  const auto m = static_cast<double>(b.size());
  const double low = std::min(ranks.u, n * m - ranks.u);
  if (ranks.ties == 0 && a.size() <= kExactSamplesMax && b.size() <= kExactSamplesMax)
    return std::min(
        1.0, 2 * exact_at_most(a.size(), b.size(), static_cast<std::size_t>(std::llround(low))));
  const double all = n + m;
  const double variance = n * m / 12 * (all + 1 - ranks.ties / (all * (all - 1)));
  if (!(variance > 0)) return 1;  // all values are equal
  const double distance = std::max(0.0, n * m / 2 - low - 0.5);
  return std::erfc(distance / std::sqrt(2 * variance));
}

}  // namespace wsync::bench
