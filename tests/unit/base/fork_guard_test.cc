// Gates keep fork() away from half-made descriptors, and hold no other thread up.
#include "shared/base/fork_guard.h"

#include <atomic>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync {
namespace {

using std::chrono::seconds;

constexpr seconds kWaitLimit{60};

UniqueFd new_event() {
  return UniqueFd::made_by([] { return ::eventfd(0, EFD_CLOEXEC); });
}

// Waits until a thread of this process sleeps in the kernel.
void await_sleep(const std::atomic<pid_t>& thread) {
  for (;;) {
    if (thread != 0) {
      std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread.load()));
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      const std::size_t name_end = text.rfind(')');
      if (name_end != std::string::npos && text.substr(name_end + 2, 1) == "S") return;
    }
    std::this_thread::yield();
  }
}

TEST(ForkGate, AFileThatOpensSlowlyHoldsNoOtherThreadUp) {
  std::string directory = testing::TempDir() + "fork_gate_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string fifo = directory + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::atomic<pid_t> slow_id = 0;
  std::jthread slow([&] {
    slow_id = ::gettid();
    // It takes until somebody opens the other end.
    const UniqueFd file =
        UniqueFd::made_by([&] { return ::open(fifo.c_str(), O_RDONLY | O_CLOEXEC); });
    EXPECT_TRUE(file.valid());
  });
  await_sleep(slow_id);
  auto others = std::async(std::launch::async, [] { return new_event().valid(); });
  EXPECT_EQ(others.wait_for(kWaitLimit), std::future_status::ready) << "it waits for that file";
  const int other_end = ::open(fifo.c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_GE(other_end, 0);
  EXPECT_TRUE(others.get());
  slow.join();
  ::close(other_end);
  ::unlink(fifo.c_str());
  ::rmdir(directory.c_str());
}

TEST(ForkGate, AForkWaitsForEveryGate) {
  ASSERT_TRUE(close_descriptors_in_children());
  std::atomic<pid_t> forking_id = 0;
  std::atomic<bool> is_released = false;
  std::jthread forking;
  {
    const ForkGate gate;
    const ForkGate second;
    forking = std::jthread([&] {
      forking_id = ::gettid();
      const pid_t child = ::fork();
      if (child == 0) ::_exit(is_released ? 0 : 1);
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "it has forked in the middle";
    });
    await_sleep(forking_id);
    is_released = true;
  }
  forking.join();
  EXPECT_TRUE(new_event().valid());
}

// Several threads fork at once, while others make descriptors. A child has one thread, and no lock
// that a thread of its parent has held.
TEST(ForkGate, ChildrenMakeDescriptorsOfTheirOwn) {
  ASSERT_TRUE(close_descriptors_in_children());
  constexpr int kForks = 50;
  std::atomic<bool> is_over = false;
  std::vector<std::jthread> makers;
  for (int i = 0; i < 2; ++i)
    makers.emplace_back([&] {
      while (!is_over) EXPECT_TRUE(new_event().valid());
    });
  std::vector<std::jthread> forking;
  for (int i = 0; i < 2; ++i)
    forking.emplace_back([] {
      for (int n = 0; n < kForks; ++n) {
        const pid_t child = ::fork();
        if (child == 0) {
          ::alarm(60);  // a child that waits for ever ends by this signal
          for (int made = 0; made < 3; ++made)
            if (!new_event().valid()) ::_exit(1);
          const pid_t grandchild = ::fork();
          if (grandchild == 0) ::_exit(new_event().valid() ? 0 : 1);
          int status = -1;
          ::_exit(::waitpid(grandchild, &status, 0) == grandchild ? status : 1);
        }
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_EQ(status, 0);
      }
    });
  forking.clear();
  is_over = true;
}

}  // namespace
}  // namespace wsync
