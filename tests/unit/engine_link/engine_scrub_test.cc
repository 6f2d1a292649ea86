// Scrubs in which the engine is asked for its bytes: when it is asked, and how much of the time
// that takes.
#include "inference_side/engine_link/engine_scrub.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/digest.h"
#include "tests/support/bytes.h"
#include "tests/support/versions.h"

namespace wsync::engine {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr std::uint32_t kPercent = 10'000;
constexpr std::uint32_t kAlways = 1'000'000;

// An engine that returns the bytes of two tensors, and takes its time.
class ReadEngine final : public Engine {
 public:
  Result<> pause(const PauseRequest& /*request*/) override { return {}; }
  Result<> load_begin(const Version& /*version*/) override { return {}; }
  Result<Answer> load_layer(const Version& /*version*/, std::uint32_t /*layer*/,
                            std::span<const LayerTensor> /*tensors*/) override {
    return Answer::kNow;
  }
  Result<Answer> commit(const Version& /*version*/) override { return Answer::kNow; }
  Result<> resume() override { return {}; }
  Result<> read_tensor(std::uint32_t tensor, std::uint64_t offset,
                       std::span<std::byte> out) override {
    ++calls;
    clock = clock + cost;
    if (!failure.empty()) return fail(ErrorCode::kIo, failure);
    if (is_lazy) return {};
    std::ranges::copy(std::span(memory.at(tensor)).subspan(offset, out.size()), out.begin());
    return {};
  }

  std::vector<std::vector<std::byte>> memory;
  TimePoint clock{1'000'000'000};
  nanoseconds cost = microseconds(100);
  std::uint64_t calls = 0;
  std::string failure;
  bool is_lazy = false;  // it says that it has written, and has not
};

class EngineScrubTest : public testing::Test {
 protected:
  EngineScrubTest() {
    std::mt19937_64 random(3);
    for (const reload::Shard& shard : shards_)
      fill_random(random, engine_.memory.emplace_back(shard.bytes()));
  }
  [[nodiscard]] ScrubPass pass(std::uint64_t number) const {
    std::vector<ScrubPass::Tensor> tensors;
    for (std::uint64_t t = 0; t < shards_.size(); ++t)
      tensors.push_back({.seed = t, .shard = shards_[t], .memory = {}});
    return {number, kV1, std::move(tensors), engine_.clock};
  }
  [[nodiscard]] std::vector<SplitSum> expected() const {
    std::vector<SplitSum> sums;
    for (std::uint64_t t = 0; t < shards_.size(); ++t)
      sums.push_back(sum_of_part(shards_[t], t, engine_.memory[t], 0));
    return sums;
  }
  // Goes to the next time at which something is due, and reads.
  void read(bool has_event = false) {
    const auto due = scrub_.due();
    ASSERT_TRUE(due.has_value());
    engine_.clock = std::max(engine_.clock, *due);
    scrub_.read([has_event] { return has_event; });
  }
  [[nodiscard]] control::Scrubbed read_all() {
    while (scrub_.due()) read();
    return scrub_.take_report().value_or(control::Scrubbed{});
  }

  // Columns that cut words, and a whole tensor of several blocks.
  std::vector<reload::Shard> shards_{
      reload::Shard::make(8, std::vector<std::uint64_t>{900, 2'001},
                          std::vector{control::DimRange{.dim = 1, .begin = 3, .length = 1'001}})
          .value(),
      reload::Shard::make(16, std::vector<std::uint64_t>{1'000'000}, {}).value()};
  ReadEngine engine_;
  EngineScrub scrub_{engine_, [this] { return engine_.clock; }};
};

TEST_F(EngineScrubTest, TheSumsAreThoseOfTheBytesThatTheEngineReturns) {
  scrub_.set_serving(true);
  scrub_.begin(pass(5), kAlways);
  const auto report = read_all();
  EXPECT_EQ(report.pass, 5U);
  EXPECT_EQ(report.version, kV1);
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(report.sums, expected());
  EXPECT_EQ(report.cpu_ns, engine_.calls * 100'000);
  EXPECT_FALSE(scrub_.take_report()) << "once";
  engine_.memory[1][77] ^= std::byte{1};
  scrub_.begin(pass(6), kAlways);
  const auto sums = read_all().sums;
  EXPECT_EQ(sums, expected());
  EXPECT_EQ(sums[0], report.sums[0]);
  EXPECT_FALSE(sums[1] == report.sums[1]);
}

TEST_F(EngineScrubTest, NothingIsAskedForWhileTheRankDoesNotServe) {
  scrub_.begin(pass(5), kAlways);
  EXPECT_FALSE(scrub_.due());
  scrub_.read([] { return false; });
  EXPECT_EQ(engine_.calls, 0U);
  scrub_.set_serving(true);
  read(true);
  EXPECT_EQ(engine_.calls, 1U) << "something waits for the thread";
  scrub_.set_serving(false);
  EXPECT_FALSE(scrub_.due());
  EXPECT_FALSE(scrub_.take_report());
  scrub_.set_serving(true);
  EXPECT_EQ(read_all().sums, expected());
}

// Of a version that the rank does not serve any more nothing is said.
TEST_F(EngineScrubTest, ACompletePassIsReportedWhenTheRankServes) {
  scrub_.set_serving(true);
  scrub_.begin(pass(5), kAlways);
  while (scrub_.due()) read();
  scrub_.set_serving(false);
  EXPECT_FALSE(scrub_.take_report());
  scrub_.set_serving(true);
  EXPECT_EQ(scrub_.take_report().value().sums, expected());
}

TEST_F(EngineScrubTest, TheCallsTakeTheirShareOfTheTimeAndNoMore) {
  scrub_.set_serving(true);
  for (const nanoseconds cost : {nanoseconds(microseconds(10)), nanoseconds(microseconds(300)),
                                 nanoseconds(milliseconds(40)), nanoseconds(seconds(5))}) {
    engine_.cost = cost;
    scrub_.begin(pass(5), kPercent);
    // What an earlier pass has used is not taken again.
    engine_.clock = std::max(engine_.clock, scrub_.due().value());
    const TimePoint begin = engine_.clock;
    nanoseconds used{0};
    while (scrub_.due()) {
      const std::uint64_t before = engine_.calls;
      read();
      const nanoseconds burst = (engine_.calls - before) * cost;
      EXPECT_LT(burst, EngineScrub::kBurst + cost) << "a step would wait for it";
      used += burst;
      EXPECT_LE(used.count(),
                (scrub_.due().value_or(engine_.clock + used * 99) - begin).count() / 100 + 1);
    }
    EXPECT_EQ(scrub_.take_report().value().cpu_ns, static_cast<std::uint64_t>(used.count()));
  }
  scrub_.begin(pass(6), kPercent);
  EXPECT_GT(scrub_.due().value() - engine_.clock, seconds(400)) << "five seconds are one percent";
}

TEST_F(EngineScrubTest, AnErrorOfTheEngineEndsThePassAndIsItsReport) {
  scrub_.set_serving(true);
  scrub_.begin(pass(5), kAlways);
  read(true);
  engine_.failure = "not now";
  read();
  EXPECT_FALSE(scrub_.due());
  const auto report = scrub_.take_report().value();
  EXPECT_EQ(report.pass, 5U);
  EXPECT_EQ(report.failure, "not now");
  EXPECT_TRUE(report.sums.empty());
  EXPECT_FALSE(scrub_.take_report());
  engine_.failure.clear();
  scrub_.begin(pass(6), kAlways);
  EXPECT_EQ(read_all().sums, expected());
}

TEST_F(EngineScrubTest, APassThatIsEndedSaysWhyAndADroppedOneNothing) {
  scrub_.set_serving(true);
  scrub_.end("there is none");
  EXPECT_FALSE(scrub_.take_report());
  scrub_.begin(pass(5), kAlways);
  read(true);
  scrub_.end("all weights were loaded");
  EXPECT_FALSE(scrub_.due());
  EXPECT_EQ(scrub_.take_report().value().failure, "all weights were loaded");
  scrub_.begin(pass(6), kAlways);
  read(true);
  scrub_.drop();
  EXPECT_FALSE(scrub_.due());
  EXPECT_FALSE(scrub_.take_report());
}

// Otherwise it would return the block before, and what it holds would count as read.
TEST_F(EngineScrubTest, WhatTheEngineDoesNotWriteIsZero) {
  for (auto& memory : engine_.memory) std::ranges::fill(memory, std::byte{7});
  scrub_.set_serving(true);
  scrub_.begin(pass(5), kAlways);
  read(true);
  engine_.is_lazy = true;
  EXPECT_FALSE(read_all().sums == expected());
}

TEST_F(EngineScrubTest, ARankWithoutTensorsHasNothingToRead) {
  scrub_.set_serving(true);
  scrub_.begin(ScrubPass(5, kV1, {}, engine_.clock), kPercent);
  EXPECT_FALSE(scrub_.due());
  EXPECT_TRUE(scrub_.take_report().value().sums.empty());
  EXPECT_EQ(engine_.calls, 0U);
}

}  // namespace
}  // namespace wsync::engine
