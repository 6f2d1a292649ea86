// Measurements that take turns, and the rows of the baseline on a MiB: that every byte arrives.
#include <array>
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>

#include "bench/baseline/baseline_bench.h"
#include "bench/baseline/memory.h"
#include "bench/baseline/pages.h"
#include "bench/harness/directory.h"
#include "shared/base/units.h"

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

TEST(BaselineWorkbench, EveryThreadHasItsPartAndKeepsIt) {
  const auto bench = Workbench::create(kMiB).value();
  Ground& ground = *bench->add_ground(3).value();
  std::array<std::thread::id, 3> first{};
  std::array<std::thread::id, 3> second{};
  std::array<Ground::Part, 3> parts{};
  ground.parallel([&](unsigned i, Ground::Part part) {
    first.at(i) = std::this_thread::get_id();
    parts.at(i) = part;
  });
  ground.parallel([&](unsigned i, Ground::Part) { second.at(i) = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_NE(first[1], first[2]);
  std::size_t at = 0;
  for (const Ground::Part& part : parts) {
    EXPECT_EQ(part.at, at);
    at += part.bytes;
  }
  EXPECT_EQ(at, kMiB);
  // Touched by their threads: nothing is left to be, and each part has noise of its own.
  EXPECT_FALSE(
      std::ranges::equal(ground.source().first(4096), ground.source().subspan(parts[1].at, 4096)));
}

TEST(BaselineWorkbench, SeesAByteThatDidNotArrive) {
  const auto bench = Workbench::create(kMiB).value();
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

TEST(BaselineBench, ARowThatRunsOutIsLeftOutAndOthersGoOn) {
  const auto interrupt = Interrupt::create().value();
  int measured = 0;
  const auto steady = []() -> Result<std::chrono::nanoseconds> { return std::chrono::seconds(1); };
  const auto failing = [&]() -> Result<std::chrono::nanoseconds> {
    if (++measured == 3) return fail(ErrorCode::kResourceExhausted, "no huge pages any more");
    return std::chrono::seconds(1);
  };
  BaselineRows rows;
  rows.rows = {{.name = "a", .variant = "", .measure = steady},
               {.name = "b", .variant = "", .measure = failing, .may_run_out = true}};
  const auto nothing = [](std::string_view, unsigned, unsigned) {};
  const auto found = measure_rows(rows, limits::kGiB, 4, interrupt, nothing);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_THAT((*found)[0].samples, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT((*found)[1].samples, ::testing::IsEmpty());
  EXPECT_EQ((*found)[1].left_out, "no huge pages any more");
  EXPECT_EQ(measured, 3) << "it is not tried again";
  // Others must not fail, and this one not in another way.
  measured = 0;
  rows.rows[1].may_run_out = false;
  EXPECT_EQ(measure_rows(rows, limits::kGiB, 4, interrupt, nothing).error().code(),
            ErrorCode::kResourceExhausted);
  rows.rows[1].may_run_out = true;
  rows.rows[1].measure = []() -> Result<std::chrono::nanoseconds> {
    return fail(ErrorCode::kDigestMismatch, "other bytes");
  };
  EXPECT_EQ(measure_rows(rows, limits::kGiB, 4, interrupt, nothing).error().code(),
            ErrorCode::kDigestMismatch);
}

TEST(BaselineBench, CachesAreNotTakenForMemory) {
  EXPECT_EQ(quick_baseline_bytes(0), 32 * kMiB);
  EXPECT_EQ(quick_baseline_bytes(32 * kMiB), 64 * kMiB);
  EXPECT_EQ(quick_baseline_bytes(480 * kMiB), 512 * kMiB);
  EXPECT_THAT(cache_note(480 * kMiB, 480 * kMiB),
              HasSubstr("the figures are those of the caches, not of memory"));
  EXPECT_EQ(cache_note(480 * kMiB + 1, 480 * kMiB), "");
  EXPECT_THAT(cache_note(kMiB, 0), HasSubstr("unknown"));
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
