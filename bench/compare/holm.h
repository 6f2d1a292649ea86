// What probabilities of many tests are worth together: the step-down procedure of S. Holm ("A
// Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6,
// 1979).
//
// Of 60 cases in which nothing has changed, three are beyond a probability of 0.05 by chance. Here
// a single false one fails a comparison, so what is bounded is the probability of any: the
// family-wise error rate, and not the share of false ones among those that are told (Benjamini and
// Hochberg). It holds however the cases depend on each other, and they do: they share a machine.
#pragma once

#include <span>
#include <vector>

namespace wsync::bench {

struct HolmTest {
  double chance = 1;        // of this test alone
  double least_chance = 1;  // that it could have had; at most `chance`
  // Both as they count among all: below a level, the level is the most probability with which any
  // test of the family comes below it while nothing has changed.
  double adjusted = 1;
  double least_adjusted = 1;  // were this test's chance the least one, and the others as they are
};

// Sets what is adjusted.
void adjust_by_holm(std::span<HolmTest> tests);

}  // namespace wsync::bench
