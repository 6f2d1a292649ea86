#include "shared/base/thread_pool.h"

#include <atomic>
#include <future>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <vector>

namespace wsync {
namespace {

TEST(ThreadPool, OneThreadWorksInOrder) {
  std::vector<int> seen;
  std::promise<void> done;
  ThreadPool pool(1);
  for (int i = 0; i < 100; ++i) pool.post([&seen, i] { seen.push_back(i); });
  pool.post([&] { done.set_value(); });
  done.get_future().wait();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(ThreadPool, ThreadsWorkBesideEachOther) {
  ThreadPool pool(2);
  std::promise<void> first;
  std::promise<void> second;
  std::promise<void> done;
  pool.post([&] {  // ends only because another thread runs the next one
    first.set_value();
    second.get_future().wait();
    done.set_value();
  });
  pool.post([&] {
    first.get_future().wait();
    second.set_value();
  });
  done.get_future().wait();
}

TEST(ThreadPool, DestructionWaitsForWhatRuns) {
  std::promise<void> begun;
  std::promise<void> resume;
  int finished = 0;
  std::jthread releaser;
  {
    ThreadPool pool(1);
    pool.post([&] {
      begun.set_value();
      resume.get_future().wait();
      ++finished;
    });
    begun.get_future().wait();
    releaser = std::jthread([&] { resume.set_value(); });
  }
  EXPECT_EQ(finished, 1);
}

TEST(ThreadPool, ThreadsAreAsNiceAsAsked) {
  std::promise<int> nice;
  ThreadPool pool(1, 7);
  pool.post([&] { nice.set_value(::getpriority(PRIO_PROCESS, 0)); });
  EXPECT_EQ(nice.get_future().get(), 7);
}

TEST(ForEachIndex, EachIndexIsWorkedOnOnce) {
  ThreadPool pool(3);
  for (ThreadPool* helpers : {static_cast<ThreadPool*>(nullptr), &pool})
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
      std::vector<std::atomic<int>> times(count);
      for_each_index(helpers, count, [&](std::size_t i) { ++times[i]; });
      for (const auto& time : times) EXPECT_EQ(time, 1);
    }
}

}  // namespace
}  // namespace wsync
