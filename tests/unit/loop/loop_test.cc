#include "shared/loop/loop.h"

#include <array>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <sched.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/unix_socket.h"
#include "shared/loop/fd_watcher.h"
#include "shared/loop/process_watch.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "tests/support/captured_log.h"

namespace wsync {
namespace {

using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<Loop> make_loop() { return Loop::create().value(); }

TEST(Loop, PostedTasksRunInOrderAndNotInsidePost) {
  auto loop = make_loop();
  std::vector<int> order;
  loop->post([&] {
    order.push_back(1);
    loop->post([&] {
      order.push_back(3);
      loop->stop();
    });
    order.push_back(2);
  });
  EXPECT_TRUE(order.empty());
  loop->run();
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

TEST(Loop, RunsAgainAfterStop) {
  auto loop = make_loop();
  int runs = 0;
  for (int i = 0; i < 3; ++i) {
    loop->post([&] { ++runs; });
    loop->stop();
    loop->run();
  }
  EXPECT_EQ(runs, 3);
}

TEST(Loop, ManyThreadsPostAndNothingIsLost) {
  auto loop = make_loop();
  constexpr int kThreads = 4;
  constexpr int kTasks = 1000;
  int ran = 0;  // loop thread only
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kTasks; ++i)
        loop->post([&] {
          EXPECT_TRUE(loop->in_loop());
          if (++ran == kThreads * kTasks) loop->stop();
        });
    });
  loop->run();
  EXPECT_EQ(ran, kThreads * kTasks);
}

TEST(Loop, KnowsItsThread) {
  auto loop = make_loop();
  EXPECT_TRUE(loop->in_loop());
  std::jthread([&] { EXPECT_FALSE(loop->in_loop()); }).join();
  std::jthread([&] {
    loop->stop();
    loop->run();
    EXPECT_TRUE(loop->in_loop());
  }).join();
  EXPECT_FALSE(loop->in_loop());
  loop->stop();
  loop->run();
}

TEST(Loop, TasksThatNeverRanAreDestroyed) {
  auto token = std::make_shared<int>(1);
  {
    auto loop = make_loop();
    loop->post([token] { FAIL(); });
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(Loop, TasksMayOwnWhatCannotBeCopied) {
  auto loop = make_loop();
  auto owned = std::make_unique<int>(5);
  int found = 0;
  loop->post([&, moved = std::move(owned)] {
    found = *moved;
    loop->stop();
  });
  loop->run();
  EXPECT_EQ(found, 5);
}

TEST(LoopDeath, AHandleThatOutlivesTheLoopIsADefect) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto loop = make_loop();
        const Timer timer(*loop, [] {});
        loop.reset();
      },
      "outlived its loop");
}

TEST(Timer, FiresInOrderOfTimeAndNeverEarly) {
  auto loop = make_loop();
  std::vector<int> order;
  const TimePoint due = now() + milliseconds(20);
  Timer late(*loop, [&] {
    EXPECT_GE(now(), due);
    order.push_back(2);
    loop->stop();
  });
  Timer early(*loop, [&] { order.push_back(1); });
  late.start_at(due);
  early.start(milliseconds(1));
  EXPECT_TRUE(late.active());
  loop->run();
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_FALSE(late.active());
}

TEST(Timer, RepeatsUntilStoppedAndCanBeDestroyedInItsCallback) {
  auto loop = make_loop();
  int fired = 0;
  std::unique_ptr<Timer> timer;
  timer = std::make_unique<Timer>(*loop, [&, token = std::make_shared<int>(7)] {
    if (++fired < 3) return;
    timer.reset();
    EXPECT_EQ(*token, 7);  // the callback lives until it returns
    loop->stop();
  });
  timer->start_repeating(milliseconds(1));
  loop->run();
  EXPECT_EQ(fired, 3);
}

TEST(Timer, AStoppedOrDestroyedOneDoesNotFire) {
  auto loop = make_loop();
  Timer stopped(*loop, [] { FAIL(); });
  auto destroyed = std::make_unique<Timer>(*loop, [] { FAIL(); });
  stopped.start(milliseconds(0));
  destroyed->start(milliseconds(0));
  stopped.stop();
  destroyed.reset();
  Timer end(*loop, [&] { loop->stop(); });
  end.start(milliseconds(5));
  loop->run();
}

TEST(FdWatcher, ReportsReadableWritableAndHangUp) {
  auto loop = make_loop();
  auto [a, b] = unix_socket_pair().value();
  std::vector<std::string> seen;
  std::unique_ptr<FdWatcher> watcher;
  watcher = FdWatcher::create(*loop, a.get(), [&](FdEvents events) {
              if (events.writable) {
                seen.emplace_back("writable");
                watcher->watch({.readable = true});
                std::array<std::byte, 1> byte{};
                EXPECT_TRUE(send_some(b.get(), byte).has_value());
                return;
              }
              std::array<std::byte, 8> buffer{};
              std::vector<UniqueFd> fds;
              const auto n = receive_some(a.get(), buffer, fds);
              if (n) {
                seen.emplace_back("readable");
                b.reset();
              } else {
                seen.emplace_back("gone");
                watcher.reset();
                loop->stop();
              }
            }).value();
  watcher->watch({.writable = true});
  loop->run();
  EXPECT_EQ(seen, (std::vector<std::string>{"writable", "readable", "gone"}));
}

TEST(FdWatcher, ARegularFileCannotBeWatched) {
  auto loop = make_loop();
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(FdWatcher::create(*loop, file.get(), [](FdEvents) {}).has_value());
}

TEST(Signals, TheFirstStopsInOrder) {
  auto loop = make_loop();
  int signal = 0;
  {
    auto signals = Signals::create(*loop, [&](int number) {
      signal = number;
      loop->stop();
    });
    ASSERT_TRUE(signals.has_value());
    EXPECT_EQ(Signals::create(*loop, [](int) {}).error().code(), ErrorCode::kBusy);
    ASSERT_EQ(::raise(SIGTERM), 0);
    loop->run();
    EXPECT_EQ(signal, SIGTERM);
  }
  EXPECT_TRUE(Signals::create(*loop, [](int) {}).has_value());  // the place is free again
}

TEST(SignalsDeathTest, TheSecondEndsTheProcessEvenIfTheLoopHangs) {
  // A new process, because a forked one of several threads gets no signals under the thread
  // sanitizer.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto loop = make_loop();
        auto signals = Signals::create(*loop, [](int) {});
        ::raise(SIGINT);  // the loop never runs, so nothing handles the first one
        ::raise(SIGINT);
        ::_exit(1);
      },
      testing::ExitedWithCode(130), "");
}

TEST(Worker, RunsElsewhereAndFinishesOnTheLoop) {
  auto loop = make_loop();
  Worker worker(*loop, {.name = "test"});
  std::thread::id ran_on;
  int result = 0;
  ASSERT_TRUE(worker
                  .submit([&] { ran_on = std::this_thread::get_id(); },
                          [&] {
                            EXPECT_TRUE(loop->in_loop());
                            result = 1;
                            loop->stop();
                          })
                  .has_value());
  loop->run();
  EXPECT_EQ(result, 1);
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(Worker, TheQueueIsBoundedAndDrainsOnStop) {
  auto loop = make_loop();
  Worker worker(*loop, {.name = "test", .max_queued = 2});
  std::promise<void> started;
  std::promise<void> gate;
  std::atomic<int> ran = 0;
  int finished = 0;
  const auto done = [&] { ++finished; };
  ASSERT_TRUE(worker
                  .submit(
                      [&] {
                        started.set_value();
                        gate.get_future().wait();
                        ++ran;
                      },
                      done)
                  .has_value());
  started.get_future().wait();
  ASSERT_TRUE(worker.submit([&] { ++ran; }, done).has_value());
  ASSERT_TRUE(worker.submit([&] { ++ran; }, done).has_value());
  EXPECT_EQ(worker.submit([&] { ++ran; }).error().code(), ErrorCode::kBusy);
  gate.set_value();
  worker.stop();
  EXPECT_EQ(ran, 3);
  EXPECT_EQ(worker.submit([] {}).error().code(), ErrorCode::kCancelled);
  loop->stop();
  loop->run();
  EXPECT_EQ(finished, 3);
}

// ---- what keeps a loop ----

// Runs the loop until it is stopped; what it has logged.
std::string logged(Loop& loop) {
  log_init({.level = LogLevel::kWarning});
  test::capture_log();
  loop.run();
  return test::captured_log();
}

constexpr milliseconds kTooLong = kSlowCallback + milliseconds(20);

TEST(LoopLag, ACallbackThatKeepsTheLoopIsNamedWithThePlaceWhereItWasMade) {
  auto loop = make_loop();
  const auto block = [] { std::this_thread::sleep_for(kTooLong); };
  const auto name = [](std::string_view kind) {
    return fmt::format("by a {} of .*loop_test.cc:", kind);
  };
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd read_end(pipe[0]);
  const UniqueFd write_end(pipe[1]);
  std::unique_ptr<FdWatcher> watcher;
  Worker worker(*loop, {.name = "test"});
  Timer timer(*loop, [&] {
    block();
    ASSERT_EQ(::write(write_end.get(), "x", 1), 1);
  });
  watcher = FdWatcher::create(*loop, read_end.get(), [&](FdEvents) {
              block();
              watcher.reset();
              loop->stop();
            }).value();
  watcher->watch({.readable = true});
  ASSERT_TRUE(worker
                  .submit([] {},
                          [&] {
                            block();
                            timer.start(milliseconds(0));
                          })
                  .has_value());
  const int task_line = __LINE__ + 1;
  loop->post(block);
  const std::string log = logged(*loop);
  for (const char* kind : {"timer", "descriptor watcher", "posted task"})
    EXPECT_THAT(log, ContainsRegex(name(kind)));
  EXPECT_THAT(log, HasSubstr(fmt::format("loop_test.cc:{})", task_line)));
  EXPECT_EQ(loop->lag().slow_callbacks, 4);
  EXPECT_GE(loop->lag().longest, kTooLong);
}

TEST(LoopLag, WhatAnInnerCallbackHasToldTheOuterOneDoesNotTellAgain) {
  auto loop = make_loop();
  loop->post([&] {
    {
      const CallbackTime time(
          *loop, {.kind = "message", .what = "Announce", .made = std::source_location::current()});
      std::this_thread::sleep_for(kTooLong);
    }
    loop->stop();
  });
  const std::string log = logged(*loop);
  EXPECT_THAT(log, HasSubstr("by a message Announce of "));
  EXPECT_THAT(log, ContainsRegex("\\([0-9]{1,2} ms of processor time\\)")) << "it has slept";
  EXPECT_THAT(log, Not(HasSubstr("posted task")));
  EXPECT_EQ(loop->lag().slow_callbacks, 1);
}

TEST(LoopLag, ShortCallbacksAreNotToldHoweverManyThereAre) {
  auto loop = make_loop();
  for (int i = 0; i < 50; ++i) loop->post([] { std::this_thread::sleep_for(kSlowCallback / 20); });
  loop->stop();
  EXPECT_EQ(logged(*loop), "");
  EXPECT_EQ(loop->lag().slow_callbacks, 0);
  EXPECT_GE(loop->lag().longest, kSlowCallback / 20);
}

std::chrono::nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Several threads share one processor with the loop's: a callback takes long, and is not at fault.
TEST(LoopLag, WaitingForAProcessorIsTheMachinesLoadAndNotTold) {
  if (::access("/proc/thread-self/schedstat", R_OK) != 0)
    GTEST_SKIP() << "this kernel does not count how long threads wait for a processor";
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  std::size_t processor = 0;
  while (!CPU_ISSET(processor, &before)) ++processor;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  std::atomic<bool> over = false;
  std::chrono::nanoseconds took{0};
  auto loop = make_loop();
  std::string log;
  std::jthread([&] {
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);  // threads that it makes have it too
    std::vector<std::jthread> busy;
    for (int i = 0; i < 6; ++i)
      busy.emplace_back([&] {
        while (!over) {
        }
      });
    loop->post([&] {
      const TimePoint begin = now();
      const auto used = processor_time();
      while (processor_time() - used < kSlowCallback * 6 / 10) {
      }
      took = now() - begin;
      loop->stop();
    });
    log = logged(*loop);
    over = true;
  }).join();
  EXPECT_GT(took, kSlowCallback * 2) << "the processor was not busy";
  EXPECT_LT(loop->lag().longest, took / 2);
  EXPECT_GE(loop->lag().longest, kSlowCallback / 2);
}

TEST(ProcessWatch, TellsTheEndOfAProcessOnce) {
  auto loop = make_loop();
  int start[2];
  ASSERT_EQ(::pipe(start), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    (void)!::read(start[0], &byte, 1);
    ::_exit(0);
  }
  int ends = 0;
  std::unique_ptr<ProcessWatch> watch;
  auto made = ProcessWatch::create(*loop, child, [&] {
    ++ends;
    watch.reset();  // allowed inside of the callback
    loop->post([&] { loop->stop(); });
  });
  ASSERT_TRUE(made.has_value()) << made.error().message();
  watch = std::move(*made);
  EXPECT_FALSE(watch->has_ended());
  ASSERT_EQ(::write(start[1], "1", 1), 1);
  loop->run();
  EXPECT_EQ(ends, 1);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(ProcessWatch::create(*loop, child, [] {}).error().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(ProcessWatch::create(*loop, 0, [] {}).error().code(), ErrorCode::kNotFound);
  for (const int fd : start) ::close(fd);
}

}  // namespace
}  // namespace wsync
