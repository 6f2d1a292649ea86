// The thread that reads weights: when it reads, when it reports, and how it is stopped.
#include "inference_side/engine_link/scrubber.h"

#include <algorithm>
#include <condition_variable>
#include <gtest/gtest.h>
#include <mutex>

#include "shared/base/stream_copy.h"
#include "tests/support/versions.h"

namespace wsync::engine {
namespace {

using std::chrono::milliseconds;
constexpr std::uint32_t kAll = 1'000'000;

// Weights, and who waits for reports.
class ScrubberTest : public testing::Test {
 protected:
  [[nodiscard]] ScrubPass pass(std::uint64_t number, const Version& version = kV1) {
    const auto shard =
        reload::Shard::make(8, std::vector<std::uint64_t>{weights_.size()}, {}).value();
    return {number, version, {{.seed = 1, .shard = shard, .memory = weights_}}, now()};
  }
  [[nodiscard]] SplitSum expected() const {
    return split_sum(weights_, {.seed = 1, .position = 0, .tensor_bytes = weights_.size()});
  }
  // The next report, when there is one.
  [[nodiscard]] control::Scrubbed wait() {
    std::unique_lock lock(mutex_);
    std::optional<control::Scrubbed> report;
    EXPECT_TRUE(reported_.wait_for(lock, std::chrono::seconds(30), [&] {
      report = scrubber_.take_report();
      return report.has_value();
    }));
    return report.value_or(control::Scrubbed{});
  }

  std::mutex mutex_;
  std::condition_variable reported_;
  std::vector<std::byte> weights_ = std::vector<std::byte>(20U << 20U, std::byte{3});
  Scrubber scrubber_{[this] {
    const std::lock_guard lock(mutex_);
    reported_.notify_all();
  }};
};

TEST_F(ScrubberTest, ReadsEverythingAndReportsItOnce) {
  scrubber_.set_serving(true);
  ASSERT_TRUE(scrubber_.begin(pass(5), kAll));
  const auto report = wait();
  EXPECT_EQ(report.pass, 5U);
  EXPECT_EQ(report.version, kV1);
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(report.sums, std::vector{expected()});
  EXPECT_GT(report.cpu_ns, 0U);
  EXPECT_GE(report.age_ns, report.cpu_ns);
  EXPECT_FALSE(scrubber_.take_report());
}

TEST_F(ScrubberTest, ReadsNothingWhileTheRankDoesNotServe) {
  ASSERT_TRUE(scrubber_.begin(pass(5), kAll));
  // Nobody reads: the sanitizers would see it.
  std::ranges::fill(weights_, std::byte{4});
  EXPECT_EQ(scrubber_.read_blocks(), std::vector<std::uint64_t>{0});
  scrubber_.set_serving(true);
  EXPECT_EQ(wait().sums, std::vector{expected()});
}

TEST_F(ScrubberTest, AHoldEndsTheReadingAndThePassGoesOnAfterIt) {
  scrubber_.set_serving(true);
  for (int turn = 0; turn < 50; ++turn) {
    ASSERT_TRUE(scrubber_.begin(pass(9), kAll));
    scrubber_.hold();
    const std::uint64_t read = scrubber_.read_blocks()[0];
    const std::size_t at = weights_.size() - 1;
    // The last block may have been read or not.
    const auto sum_of_last = [&] {
      return SplitSum{
          .words = word_sum(std::span(weights_).subspan(at - 7), {.seed = 1, .position = at - 7}),
          .edges = {}};
    };
    const SplitSum before = sum_of_last();
    weights_[at] ^= std::byte{1};
    const bool was_read = read == weights_.size() / (256U << 10U);
    const std::vector<SplitSum> none(1);
    scrubber_.change(was_read ? std::vector{before} : none,
                     was_read ? std::vector{sum_of_last()} : none);
    scrubber_.set_version(kV2);
    EXPECT_FALSE(scrubber_.take_report()) << "it is held";
    scrubber_.set_serving(true);
    const auto report = wait();
    EXPECT_EQ(report.sums, std::vector{expected()});
    EXPECT_EQ(report.version, kV2);
  }
}

TEST_F(ScrubberTest, ReportsAgainUnderEachVersionThatItIsPatchedTo) {
  scrubber_.set_serving(true);
  ASSERT_TRUE(scrubber_.begin(pass(5), kAll));
  EXPECT_EQ(wait().version, kV1);
  scrubber_.hold();
  scrubber_.change(std::vector<SplitSum>(1), std::vector<SplitSum>(1));
  scrubber_.set_version(kV2);
  EXPECT_FALSE(scrubber_.take_report());
  scrubber_.set_serving(true);
  EXPECT_EQ(scrubber_.take_report().value_or(control::Scrubbed{}).version, kV2);
  EXPECT_FALSE(scrubber_.take_report());
}

TEST_F(ScrubberTest, SaysWhyAPassHasEnded) {
  ASSERT_TRUE(scrubber_.begin(pass(5), kAll));
  scrubber_.end("all weights were loaded");
  const auto report = wait();
  EXPECT_EQ(report.pass, 5U);
  EXPECT_EQ(report.failure, "all weights were loaded");
  EXPECT_TRUE(report.sums.empty());
  scrubber_.end("there is none");
  EXPECT_FALSE(scrubber_.take_report());
  scrubber_.end(8, "it cannot begin");
  EXPECT_EQ(wait().pass, 8U);
}

TEST_F(ScrubberTest, AnotherPassTakesThePlaceOfTheFirst) {
  scrubber_.set_serving(true);
  ASSERT_TRUE(scrubber_.begin(pass(1), 1));  // it would take a day
  ASSERT_TRUE(scrubber_.begin(pass(2), kAll));
  EXPECT_EQ(wait().pass, 2U);
}

TEST_F(ScrubberTest, NothingIsReadAfterADropAndTheEndOfTheThreadWaitsForNothing) {
  scrubber_.set_serving(true);
  for (int turn = 0; turn < 8; ++turn) {
    ASSERT_TRUE(scrubber_.begin(pass(1), kAll));
    scrubber_.drop();
    std::ranges::fill(weights_, std::byte{5});
  }
  EXPECT_TRUE(scrubber_.read_blocks().empty());
  // It waits for a day, and is destroyed.
  ASSERT_TRUE(scrubber_.begin(pass(1), 1));
}

TEST(NextBurst, KeepsTheShare) {
  const TimePoint begin{1'000};
  EXPECT_EQ(next_burst(begin, milliseconds(1), 10'000), begin + milliseconds(100));
  EXPECT_EQ(next_burst(begin, milliseconds(1), kAll), begin + milliseconds(1));
  EXPECT_EQ(next_burst(begin, milliseconds(0), 10'000), begin);
  // Rounded so that it is never more than the share.
  EXPECT_EQ(next_burst(begin, std::chrono::nanoseconds(1), 300'000),
            begin + std::chrono::nanoseconds(4));
  EXPECT_EQ(next_burst(begin, milliseconds(1), 0), begin + std::chrono::seconds(1'000));
}

}  // namespace
}  // namespace wsync::engine
