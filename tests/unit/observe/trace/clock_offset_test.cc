#include "shared/observe/trace/clock_offset.h"

#include <gtest/gtest.h>
#include <random>

namespace wsync::trace {
namespace {

using std::chrono::nanoseconds;

// One exchange as two clocks see it: theirs is `offset` ahead of ours.
struct Way {
  std::int64_t begin = 0;  // ours
  std::int64_t there = 0;
  std::int64_t busy = 0;
  std::int64_t back = 0;
  std::int64_t offset = 0;
};

ClockExchange exchange_of(const Way& way) {
  return {.asked = TimePoint{way.begin},
          .received = TimePoint{way.begin + way.there + way.offset},
          .answered = TimePoint{way.begin + way.there + way.busy + way.offset},
          .heard = TimePoint{way.begin + way.there + way.busy + way.back}};
}

class Ways {
 public:
  explicit Ways(std::uint64_t seed) : random_(seed) {}
  Way next() {
    return {.begin = below(1'000'000'000'000) + 2'000'000'000'000,
            .there = below(50'000'000),
            .busy = below(5'000'000),
            .back = below(50'000'000),
            .offset = below(2'000'000'000'000) - 1'000'000'000'000};
  }

 private:
  std::int64_t below(std::int64_t max) {
    return std::uniform_int_distribution<std::int64_t>(0, max)(random_);
  }
  std::mt19937_64 random_;
};

TEST(ClockOffset, IsExactWhereBothWaysTakeEquallyLong) {
  Ways ways(1);
  for (int i = 0; i < 1000; ++i) {
    Way way = ways.next();
    way.back = way.there;
    const ClockReading reading = clock_offset(exchange_of(way));
    ASSERT_EQ(reading.kind, ClockKind::kMeasured);
    ASSERT_EQ(reading.offset, nanoseconds(way.offset));
    ASSERT_EQ(reading.uncertainty, nanoseconds(way.there)) << "half of the way there and back";
  }
}

TEST(ClockOffset, IsWrongByHalfTheTimeOnTheWayAtMost) {
  Ways ways(2);
  for (int i = 0; i < 5000; ++i) {
    Way way = ways.next();
    if (i % 3 == 0) way.there = 0;
    if (i % 3 == 1) way.back = 0;
    const ClockReading reading = clock_offset(exchange_of(way));
    ASSERT_EQ(reading.kind, ClockKind::kMeasured);
    const nanoseconds error = reading.offset - nanoseconds(way.offset);
    ASSERT_LE(error, reading.uncertainty);
    ASSERT_LE(-error, reading.uncertainty);
    ASSERT_LE(reading.uncertainty, nanoseconds((way.there + way.back + 1) / 2));
  }
}

TEST(ClockOffset, AllOfTheWayInOneDirectionIsTheWorstCase) {
  const ClockReading reading =
      clock_offset(exchange_of({.begin = 1'000, .there = 600, .busy = 50, .back = 0, .offset = 0}));
  EXPECT_EQ(reading.offset, nanoseconds(300));
  EXPECT_EQ(reading.uncertainty, nanoseconds(300));
}

TEST(ClockOffset, ReadingsThatNoTwoClocksGiveAreUnknown) {
  const auto kind = [](std::int64_t asked, std::int64_t received, std::int64_t answered,
                       std::int64_t heard) {
    return clock_offset({.asked = TimePoint{asked},
                         .received = TimePoint{received},
                         .answered = TimePoint{answered},
                         .heard = TimePoint{heard}})
        .kind;
  };
  EXPECT_EQ(kind(100, 500, 500, 100), ClockKind::kMeasured);
  EXPECT_EQ(kind(100, 500, 500, 99), ClockKind::kUnknown) << "heard before it was asked";
  EXPECT_EQ(kind(100, 500, 499, 200), ClockKind::kUnknown) << "answered before it was received";
  EXPECT_EQ(kind(100, 500, 700, 200), ClockKind::kUnknown) << "longer there than here";
  EXPECT_EQ(kind(-1, 500, 500, 200), ClockKind::kUnknown);
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(kind(kMin, kMax, kMax, kMin), ClockKind::kUnknown);
  EXPECT_EQ(kind(0, kMax, kMax, 1), ClockKind::kUnknown);
}

TEST(ClockOffset, TheBetterReadingIsTheNarrowerOne) {
  const ClockReading wide{
      .kind = ClockKind::kMeasured, .offset = nanoseconds(1), .uncertainty = nanoseconds(100)};
  const ClockReading narrow{
      .kind = ClockKind::kMeasured, .offset = nanoseconds(2), .uncertainty = nanoseconds(10)};
  EXPECT_EQ(better_of(wide, narrow).offset, narrow.offset);
  EXPECT_EQ(better_of(narrow, wide).offset, narrow.offset);
  EXPECT_EQ(better_of({}, wide).offset, wide.offset) << "an unknown clock is no reading";
}

TEST(ClockOffset, OneHostHasOneClockUnlessItIsMeasuredOtherwise) {
  const auto measured = [](std::int64_t offset, std::int64_t uncertainty) {
    return ClockReading{.kind = ClockKind::kMeasured,
                        .offset = nanoseconds(offset),
                        .uncertainty = nanoseconds(uncertainty)};
  };
  EXPECT_EQ(on_one_host(measured(90, 100)).kind, ClockKind::kSame);
  EXPECT_EQ(on_one_host(measured(90, 100)).offset, nanoseconds(0));
  EXPECT_EQ(on_one_host(measured(90, 100)).uncertainty, nanoseconds(0));
  EXPECT_EQ(on_one_host(ClockReading{}).kind, ClockKind::kSame);
  EXPECT_EQ(on_one_host(measured(-5'000, 100)).offset, nanoseconds(-5'000)) << "a time namespace";
}

}  // namespace
}  // namespace wsync::trace
