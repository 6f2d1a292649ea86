// Stops are found where they are first complete, and their beginnings are known.
#include "inference_side/reference_engine/generation/stop_scanner.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <span>
#include <vector>

namespace wsync::engine::generation {
namespace {

using Stops = std::vector<std::vector<Token>>;

bool ends_with(std::span<const Token> tokens, std::span<const Token> end) {
  return tokens.size() >= end.size() && std::ranges::equal(tokens.last(end.size()), end);
}

TEST(StopScanner, NoStopsNothingIsHeld) {
  StopScanner scanner({});
  EXPECT_EQ(scanner.push(5).held, 0U);
  EXPECT_EQ(scanner.push(5).matched, 0U);
}

TEST(StopScanner, ABeginningThatComesToNothingIsLetGo) {
  StopScanner scanner(Stops{{1, 2, 3}});
  EXPECT_EQ(scanner.push(1).held, 1U);
  EXPECT_EQ(scanner.push(2).held, 2U);
  EXPECT_EQ(scanner.push(4).held, 0U);
  EXPECT_EQ(scanner.push(1).held, 1U);
  EXPECT_EQ(scanner.push(1).held, 1U) << "the second 1 may begin it too";
  EXPECT_EQ(scanner.push(2).held, 2U);
  EXPECT_EQ(scanner.push(3).matched, 3U);
}

TEST(StopScanner, AStopThatBeginsInsideItselfIsNotMissed) {
  StopScanner scanner(Stops{{1, 1, 2, 1, 1, 3}});
  for (const Token token : {1U, 1U, 2U, 1U, 1U}) EXPECT_EQ(scanner.push(token).matched, 0U);
  const StopScanner::Outcome outcome = scanner.push(2);
  EXPECT_EQ(outcome.matched, 0U);
  EXPECT_EQ(outcome.held, 3U) << "1 1 2 is again its beginning";
  EXPECT_EQ(scanner.push(1).held, 4U);
  EXPECT_EQ(scanner.push(1).held, 5U);
  EXPECT_EQ(scanner.push(3).matched, 6U);
}

TEST(StopScanner, OfTwoAtTheSameTokenTheLongestCounts) {
  StopScanner scanner(Stops{{2, 3}, {1, 2, 3}, {3}});
  EXPECT_EQ(scanner.push(1).held, 1U);
  EXPECT_EQ(scanner.push(2).held, 2U);
  EXPECT_EQ(scanner.push(3).matched, 3U);
}

TEST(StopScanner, TheFirstThatIsCompleteCounts) {
  StopScanner scanner(Stops{{1, 2, 3, 4}, {2, 3}});
  static_cast<void>(scanner.push(1));
  static_cast<void>(scanner.push(2));
  EXPECT_EQ(scanner.push(3).matched, 2U);
}

TEST(StopScanner, EqualsComparingEveryEndWithEveryStop) {
  std::mt19937_64 random(11);
  std::size_t stopped = 0;
  std::size_t held_max = 0;
  for (int run = 0; run < 2000; ++run) {
    Stops stops(1 + random() % 3);
    for (std::vector<Token>& stop : stops) {
      stop.resize(1 + random() % 6);
      for (Token& token : stop) token = static_cast<Token>(random() % 2);
    }
    StopScanner scanner(stops);
    std::vector<Token> output;
    for (int i = 0; i < 30; ++i) {
      output.push_back(static_cast<Token>(random() % 2));
      std::size_t matched = 0;
      std::size_t held = 0;
      for (const std::vector<Token>& stop : stops)
        for (std::size_t n = 1; n <= stop.size(); ++n)
          if (ends_with(output, std::span(stop).first(n))) {
            held = std::max(held, n);
            if (n == stop.size()) matched = std::max(matched, n);
          }
      const StopScanner::Outcome outcome = scanner.push(output.back());
      ASSERT_EQ(outcome.matched, matched) << "run " << run << ", token " << i;
      if (matched > 0) {
        ++stopped;
        break;
      }
      ASSERT_EQ(outcome.held, held) << "run " << run << ", token " << i;
      held_max = std::max(held_max, held);
    }
  }
  EXPECT_GT(stopped, 500U);
  EXPECT_EQ(held_max, 5U);
}

}  // namespace
}  // namespace wsync::engine::generation
