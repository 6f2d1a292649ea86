// Measurements that take turns, and the rows of the baseline on a MiB: that every byte arrives.
#include <array>
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "bench/baseline/baseline_bench.h"
#include "bench/baseline/memory.h"
#include "bench/baseline/pages.h"
#include "bench/measure/directory.h"
#include "shared/base/limits.h"

namespace wsync::bench {
namespace {

using limits::kMiB;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TurnsTest : public testing::Test {
 protected:
  Contender contender(const std::string& name) {
    return {.name = name, .sample = [this, name]() -> Result<double> {
              order_ += name;
              return static_cast<double>(order_.size());
            }};
  }
  std::string order_;
  Interrupt interrupt_ = Interrupt::create().value();
};

TEST_F(TurnsTest, TheOrderTurnsRoundAndWarmUpsDoNotCount) {
  const std::array contenders{contender("a"), contender("b"), contender("c")};
  std::string told;
  const auto samples = measure_in_turns(contenders, {.warm_ups = 1, .rounds = 3}, interrupt_,
                                        [&](std::string_view name, unsigned done, unsigned total) {
                                          EXPECT_EQ(done, told.size());
                                          EXPECT_EQ(total, 12U);
                                          told += name;
                                        });
  ASSERT_TRUE(samples);
  EXPECT_EQ(order_, "abccbaabccba");
  EXPECT_EQ(told, order_);
  EXPECT_THAT(*samples,
              ElementsAre(ElementsAre(6, 7, 12), ElementsAre(5, 8, 11), ElementsAre(4, 9, 10)));
}

TEST_F(TurnsTest, AnErrorEndsItWithTheNameAndASignalAtOnce) {
  std::array contenders{contender("a"), contender("b")};
  contenders[1].sample = []() -> Result<double> { return fail(ErrorCode::kIo, "no disk"); };
  const auto nothing = [](std::string_view, unsigned, unsigned) {};
  const auto failed = measure_in_turns(contenders, {}, interrupt_, nothing);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "b: no disk");
  EXPECT_EQ(order_, "a");
  ::kill(::getpid(), SIGINT);
  EXPECT_EQ(measure_in_turns(contenders, {}, interrupt_, nothing).error().code(),
            ErrorCode::kCancelled);
  EXPECT_EQ(order_, "a");
}

TEST(BaselinePages, AreNewAndHugeOnlyWhenTheKernelSaysSo) {
  const auto pages = Pages::make_private(4 * kMiB, PageKind::kSmall);
  ASSERT_TRUE(pages);
  pages->touch();
  EXPECT_EQ(pages->huge_bytes(), 0U);
  for (std::size_t at = 0; at < pages->bytes().size(); ++at)
    ASSERT_EQ(pages->bytes()[at], at % 4096 == 0 ? std::byte{1} : std::byte{0}) << at;
}

TEST(BaselineWorkbench, SeesAByteThatDidNotArrive) {
  const auto bench = Workbench::create(kMiB, 2).value();
  const auto from = bench->stamped();
  std::ranges::copy(from, bench->target().begin());
  EXPECT_TRUE(bench->check_arrived());
  bench->target()[kMiB - 1] ^= std::byte{1};
  const auto differs = bench->check_arrived();
  ASSERT_FALSE(differs);
  EXPECT_EQ(differs.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(differs.error().message(), HasSubstr("byte 1048575 of 1048576"));
  bench->target()[kMiB - 1] ^= std::byte{1};
  // What was there before does not pass for what comes next.
  (void)bench->stamped();
  EXPECT_FALSE(bench->check_arrived());
}

TEST(BaselineWorkbench, CopiesAreMeasuredOnOneTwoAndAllCores) {
  EXPECT_THAT(copy_threads(1), ElementsAre(1U));
  EXPECT_THAT(copy_threads(2), ElementsAre(1U, 2U));
  EXPECT_THAT(copy_threads(16), ElementsAre(1U, 2U, 16U));
}

TEST(BaselineBench, EveryRowMovesItsBytes) {
  const auto interrupt = Interrupt::create().value();
  const auto directory = TemporaryDirectory::create(testing::TempDir()).value();
  const auto suite = run_baseline_bench(
      {.directory = directory.path(), .bytes = kMiB + 1, .rounds = 2, .gpus = false}, interrupt,
      [](std::string_view, unsigned, unsigned) {});
  ASSERT_TRUE(suite) << suite.error().message();
  EXPECT_EQ(suite->suite, "baseline");
  EXPECT_EQ(suite->parameters.at("bytes"), kMiB + 4096);
  std::vector<std::string> names;
  for (const CaseResult& one : suite->cases) {
    names.push_back(one.name);
    EXPECT_EQ(one.bytes, kMiB + 4096) << one.name;
    EXPECT_EQ(one.samples.size(), 2U) << one.name;
    for (const double sample : one.samples) EXPECT_GT(sample, 0) << one.name;
    EXPECT_EQ(one.ratios.size(), one.name == "memcpy, 1 thread" ? 0U : 2U) << one.name;
  }
  for (const char* name : {"memcpy, 1 thread", "streaming copy, 1 thread", "first touch, private",
                           "first touch, shared", "map filled", "XXH3", "loopback TCP",
                           "Unix socket", "ZeroMQ ipc", "tmpfs read"})
    EXPECT_THAT(names, ::testing::Contains(name));
}

TEST(BaselineBench, SizesOutOfRangeAreRefused) {
  const auto interrupt = Interrupt::create().value();
  for (const std::uint64_t bytes : {std::uint64_t{0}, kMiB - 1, kBaselineBytesMax + 1}) {
    const auto suite = run_baseline_bench({.directory = "", .bytes = bytes}, interrupt,
                                          [](std::string_view, unsigned, unsigned) {});
    ASSERT_FALSE(suite);
    EXPECT_EQ(suite.error().code(), ErrorCode::kInvalidInput);
  }
}

}  // namespace
}  // namespace wsync::bench
