#include "bench/compare/holm.h"

#include <algorithm>
#include <cstddef>

namespace wsync::bench {

void adjust_by_holm(std::span<HolmTest> tests) {
  std::vector<HolmTest*> sorted;
  for (HolmTest& test : tests) sorted.push_back(&test);
  std::ranges::stable_sort(sorted, {}, [](const HolmTest* test) { return test->chance; });
  const auto left_from = [&](std::size_t rank) {
    return static_cast<double>(sorted.size() - rank);
  };
  double before = 0;  // a test counts only when all that are less probable do
  for (std::size_t rank = 0; rank < sorted.size(); ++rank) {
    before = std::max(before, left_from(rank) * sorted[rank]->chance);
    sorted[rank]->adjusted = std::min(1.0, before);
  }
  for (HolmTest& test : tests) {
    const auto place = std::ranges::lower_bound(
        sorted, test.least_chance, {}, [](const HolmTest* other) { return other->chance; });
    const auto rank = static_cast<std::size_t>(place - sorted.begin());
    const double others = rank == 0 ? 0 : sorted[rank - 1]->adjusted;
    // Where the last one is lower still, this is the last one itself.
    const double own = left_from(std::min(rank, sorted.size() - 1)) * test.least_chance;
    test.least_adjusted = std::min(1.0, std::max(others, own));
  }
}

}  // namespace wsync::bench
