// Three lanes at once: each in order, nothing before what it waits for, and one failure ends all.
#include "trainer_side/training/lanes.h"

#include <atomic>
#include <condition_variable>
#include <gtest/gtest.h>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace wsync::training {
namespace {

using schedule::Lane;
using schedule::Operation;
using schedule::OperationKind;
using schedule::RankProgram;

constexpr std::array<OperationKind, schedule::kLaneCount> kKindOfLane{
    OperationKind::kMlp, OperationKind::kDispatch, OperationKind::kOffload};

// Operations are numbered by their micro-batch.
std::uint32_t number_of(const Operation& operation) { return operation.cell.microbatch; }

std::uint32_t add(RankProgram& program, Lane lane, std::vector<std::uint32_t> after) {
  const auto number = static_cast<std::uint32_t>(program.operations.size());
  program.operations.push_back({.kind = kKindOfLane[static_cast<std::size_t>(lane)],
                                .cell = {0, schedule::Computation::kForward, number},
                                .after = std::move(after)});
  program.lanes[static_cast<std::size_t>(lane)].push_back(number);
  return number;
}

RankProgram random_program(std::mt19937_64& random, std::uint32_t operations) {
  RankProgram program;
  for (std::uint32_t i = 0; i < operations; ++i) {
    std::vector<std::uint32_t> after;
    for (std::uint64_t others = i == 0 ? 0 : random() % 4; others > 0; --others)
      after.push_back(static_cast<std::uint32_t>(random() % i));
    add(program, schedule::kLanes[random() % schedule::kLaneCount], std::move(after));
  }
  return program;
}

void yield_often(std::mt19937_64& random) {
  for (std::uint64_t times = random() % 4; times > 0; --times) std::this_thread::yield();
}

// What has run; asked while it runs, by all lanes.
class Witness {
 public:
  explicit Witness(const RankProgram& program, std::uint64_t seed)
      : program_(program), is_over_(program.operations.size()) {
    for (std::size_t lane = 0; lane < schedule::kLaneCount; ++lane) random_[lane].seed(seed + lane);
  }
  void run(const Operation& operation) {
    const auto lane = static_cast<std::size_t>(schedule::lane_of(operation.kind));
    EXPECT_FALSE(is_busy_[lane].exchange(true)) << "two operations of one lane at once";
    EXPECT_EQ(number_of(operation), program_.lanes[lane][next_[lane]++]) << "the order of a lane";
    for (const std::uint32_t other : operation.after)
      EXPECT_TRUE(is_over_[other]) << "an operation ran before what it waits for";
    yield_often(random_[lane]);
    is_busy_[lane] = false;
    is_over_[number_of(operation)] = true;
  }
  [[nodiscard]] bool all_over() const {
    return std::all_of(is_over_.begin(), is_over_.end(),
                       [](const auto& one) { return one.load(); });
  }

 private:
  const RankProgram& program_;
  std::vector<std::atomic<bool>> is_over_;
  std::array<std::atomic<bool>, schedule::kLaneCount> is_busy_{};
  std::array<std::size_t, schedule::kLaneCount> next_{};  // each by its lane
  std::array<std::mt19937_64, schedule::kLaneCount> random_;
};

TEST(Lanes, RandomProgramsRunInOrderAndAfterWhatTheyWaitFor) {
  std::mt19937_64 random(1);
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RankProgram program = random_program(random, static_cast<std::uint32_t>(1 + seed * 3));
    Witness witness(program, seed);
    const auto times = run_lanes(program, {.work = [&](const Operation& operation) -> Result<> {
                                             witness.run(operation);
                                             return {};
                                           },
                                           .on_failure = [](const Error&) { ADD_FAILURE(); }});
    ASSERT_TRUE(times.has_value());
    EXPECT_TRUE(witness.all_over());
    ASSERT_EQ(times->size(), program.operations.size());
    for (std::size_t i = 0; i < times->size(); ++i) {
      EXPECT_LE((*times)[i].begin, (*times)[i].end);
      for (const std::uint32_t other : program.operations[i].after)
        EXPECT_LE((*times)[other].end, (*times)[i].begin);
    }
  }
}

TEST(Lanes, AProgramOfNothingEnds) {
  EXPECT_TRUE(run_lanes({}, {.work = [](const Operation&) { return Result<>(); },
                             .on_failure = [](const Error&) {}})
                  .has_value());
}

TEST(Lanes, TheFirstFailureStopsAllLanesAndIsToldOnce) {
  std::mt19937_64 random(2);
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RankProgram program = random_program(random, 40);
    const auto bad = static_cast<std::uint32_t>(random() % 40);
    std::atomic<int> told = 0;
    std::atomic<bool> ran_after = false;
    std::vector<std::atomic<bool>> depends(40);  // on the one that fails
    for (std::uint32_t i = bad; i < 40; ++i) {
      depends[i] = i == bad;
      for (const std::uint32_t other : program.operations[i].after)
        if (depends[other]) depends[i] = true;
    }
    const auto result =
        run_lanes(program, {.work = [&](const Operation& operation) -> Result<> {
                              std::this_thread::yield();
                              const std::uint32_t number = number_of(operation);
                              if (number == bad)
                                return fail(ErrorCode::kIo, "operation 7 went wrong");
                              if (depends[number]) ran_after = true;
                              return {};
                            },
                            .on_failure =
                                [&](const Error& error) {
                                  ++told;
                                  EXPECT_EQ(error.message(), "operation 7 went wrong");
                                }});
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().message(), "operation 7 went wrong");
    EXPECT_EQ(told, 1);
    EXPECT_FALSE(ran_after);
  }
}

// A lane that waits for another rank is woken by on_failure, and what it then fails with is not
// the reason.
TEST(Lanes, OnFailureEndsWhatOtherLanesWaitFor) {
  RankProgram program;
  const std::uint32_t exchange = add(program, Lane::kCommunication, {});
  const std::uint32_t copy = add(program, Lane::kCopy, {});
  add(program, Lane::kComputation, {exchange, copy});
  std::mutex mutex;
  std::condition_variable changed;
  bool waits = false;
  bool aborted = false;
  const auto result =
      run_lanes(program, {.work = [&](const Operation& operation) -> Result<> {
                            std::unique_lock lock(mutex);
                            if (number_of(operation) == exchange) {
                              waits = true;
                              changed.notify_all();
                              changed.wait(lock, [&] { return aborted; });
                              return fail(ErrorCode::kPeerLost, "the group is broken");
                            }
                            changed.wait(lock, [&] { return waits; });
                            return fail(ErrorCode::kResourceExhausted, "no slot");
                          },
                          .on_failure =
                              [&](const Error& error) {
                                EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
                                const std::lock_guard lock(mutex);
                                EXPECT_FALSE(aborted) << "told twice";
                                aborted = true;
                                changed.notify_all();
                              }});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().message(), "no slot");
}

}  // namespace
}  // namespace wsync::training
