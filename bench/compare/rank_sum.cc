#include "bench/compare/rank_sum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace wsync::bench {
namespace {

struct Ranks {
  std::vector<std::uint64_t> twice;  // of all values in their order, doubled so that they are whole
  std::uint64_t sum_of_a = 0;        // doubled
  double ties = 0;                   // sum of t^3 - t over groups of t equal values
};

Ranks ranks_of(std::span<const double> a, std::span<const double> b) {
  std::vector<std::pair<double, bool>> all;  // value, is of a
  for (const double value : a) all.emplace_back(value, true);
  for (const double value : b) all.emplace_back(value, false);
  std::sort(all.begin(), all.end());
  Ranks ranks;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].first == all[begin].first) ++end;
    const auto equal = static_cast<double>(end - begin);
    const std::uint64_t twice = begin + 1 + end;  // the first and the last one's rank
    for (std::size_t i = begin; i < end; ++i) {
      ranks.twice.push_back(twice);
      if (all[i].second) ranks.sum_of_a += twice;
    }
    ranks.ties += equal * equal * equal - equal;
  }
  return ranks;
}

// Doubled sums of the `count` lowest and of the `count` highest ranks.
std::pair<std::uint64_t, std::uint64_t> extremes(const Ranks& ranks, std::size_t count) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (std::size_t i = 0; i < count; ++i) {
    low += ranks.twice[i];
    high += ranks.twice[ranks.twice.size() - 1 - i];
  }
  return {low, high};
}

// ways[s]: in how many ways `count` of these ranks have the doubled sum s.
std::vector<double> ways_of(const Ranks& ranks, std::size_t count) {
  const std::uint64_t most = extremes(ranks, count).second;
  std::vector<std::vector<double>> ways(count + 1, std::vector<double>(most + 1, 0));
  ways[0][0] = 1;
  for (std::size_t seen = 0; seen < ranks.twice.size(); ++seen) {
    const std::uint64_t rank = ranks.twice[seen];
    for (std::size_t taken = std::min(count, seen + 1); taken > 0; --taken)
      for (std::uint64_t sum = most; sum + 1 > rank; --sum)
        ways[taken][sum] += ways[taken - 1][sum - rank];
  }
  return std::move(ways[count]);
}

// Twice the smaller of both tails, each with the sum itself.
double exact_chance(const std::vector<double>& ways, std::uint64_t sum) {
  double below = 0;
  double above = 0;
  double all = 0;
  for (std::uint64_t s = 0; s < ways.size(); ++s) {
    all += ways[s];
    if (s <= sum) below += ways[s];
    if (s >= sum) above += ways[s];
  }
  return std::min(1.0, 2 * std::min(below, above) / all);
}

double normal_chance(const Ranks& ranks, double n, double m, std::uint64_t sum) {
  const double all = n + m;
  const double variance = n * m / 12 * (all + 1 - ranks.ties / (all * (all - 1)));
  if (!(variance > 0)) return 1;  // all values are equal
  const double mean = n * (all + 1) / 2;
  const double distance = std::max(0.0, std::abs(static_cast<double>(sum) / 2 - mean) - 0.5);
  return std::erfc(distance / std::sqrt(2 * variance));
}

}  // namespace

RankSumTest rank_sum_test(std::span<const double> a, std::span<const double> b) {
  if (a.empty() || b.empty()) return {};
  const Ranks ranks = ranks_of(a, b);
  const auto [low, high] = extremes(ranks, a.size());
  if (a.size() <= kExactSamplesMax && b.size() <= kExactSamplesMax) {
    const std::vector<double> ways = ways_of(ranks, a.size());
    return {.chance = exact_chance(ways, ranks.sum_of_a),
            .least_chance = std::min(exact_chance(ways, low), exact_chance(ways, high))};
  }
  const auto n = static_cast<double>(a.size());
  const auto m = static_cast<double>(b.size());
  return {
      .chance = normal_chance(ranks, n, m, ranks.sum_of_a),
      .least_chance = std::min(normal_chance(ranks, n, m, low), normal_chance(ranks, n, m, high))};
}

}  // namespace wsync::bench
