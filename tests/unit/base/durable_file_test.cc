#include "shared/base/durable_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "tests/support/bytes.h"

namespace {

bool directories_cannot_be_flushed = false;
bool nothing_is_flushed = false;

}  // namespace

// In the place of the C library's, for this whole test program.
extern "C" int fsync(int fd) {
  if (nothing_is_flushed) return 0;
  struct stat info{};
  if (directories_cannot_be_flushed && ::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace wsync {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DurableFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "wsync_durable_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ / "record";
  }
  void TearDown() override {
    directories_cannot_be_flushed = false;
    nothing_is_flushed = false;
    std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] Result<> write(const std::string& text) const {
    return write_durably(path_, std::as_bytes(std::span(text)));
  }
  [[nodiscard]] std::string content() const {
    const auto bytes = read_small_file(path_, 100).value();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
      found.push_back(entry.path().filename());
    return found;
  }

  std::filesystem::path directory_;
  std::filesystem::path path_;
};

TEST_F(DurableFile, AWriterThatStandsStillIsLeftBehindByOneThatTakesOver) {
  ASSERT_TRUE(write("one").has_value());
  const auto stopped = LockFile::acquire(path_.string() + ".lock");  // in the middle of its turn
  ASSERT_TRUE(stopped.has_value());
  const std::string text = "two";
  ASSERT_TRUE(write_durably(path_, std::as_bytes(std::span(text)), Claim::kTakeOver).has_value());
  EXPECT_EQ(content(), "two");
  EXPECT_FALSE(stopped->is_ours());
  ASSERT_TRUE(write("three").has_value());
  EXPECT_EQ(content(), "three");
}

TEST_F(DurableFile, HoldsTheNewestContentAndNothingLiesBesideIt) {
  ASSERT_TRUE(write("one").has_value());
  ASSERT_TRUE(write("two").has_value());
  EXPECT_EQ(content(), "two");
  EXPECT_THAT(names(), ElementsAre("record"));
}

TEST_F(DurableFile, AWriteThatFailsAfterTheRenameLeavesTheOldContent) {
  ASSERT_TRUE(write("old").has_value());
  directories_cannot_be_flushed = true;
  const auto written = write("new");
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code(), ErrorCode::kIo);
  EXPECT_EQ(content(), "old");
  EXPECT_THAT(names(), ElementsAre("record"));
}

TEST_F(DurableFile, AFirstWriteThatFailsAfterTheRenameLeavesNoFile) {
  directories_cannot_be_flushed = true;
  EXPECT_FALSE(write("new").has_value());
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(DurableFile, WhatAKilledProcessLeftGoesWithTheNextWrite) {
  ASSERT_TRUE(write("old").has_value());
  std::filesystem::copy_file(path_, path_.string() + ".old");
  std::filesystem::copy_file(path_, path_.string() + ".new");
  std::filesystem::copy_file(path_, path_.string() + ".lock");
  ASSERT_TRUE(write("new").has_value());
  EXPECT_EQ(content(), "new");
  EXPECT_THAT(names(), ElementsAre("record"));
}

TEST_F(DurableFile, AWriteThatFindsNoRoomLeavesNothingBesideIt) {
  ASSERT_TRUE(write("old").has_value());
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &usual), 0);
  auto* const on_signal = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{.rlim_cur = 0, .rlim_max = usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto written = write("new");
  ::setrlimit(RLIMIT_FSIZE, &usual);
  std::signal(SIGXFSZ, on_signal);
  EXPECT_FALSE(written.has_value());
  EXPECT_EQ(content(), "old");
  EXPECT_THAT(names(), ElementsAre("record"));
}

TEST_F(DurableFile, TwoWritersNeitherMixNorHinderEachOther) {
  constexpr int kWrites = 100;
  nothing_is_flushed = true;  // so that they meet as often as possible
  const std::string contents[] = {std::string(60'000, 'a'), std::string(9, 'b')};
  ASSERT_TRUE(write(contents[0]).has_value());
  std::atomic<int> at_work = 2;
  std::vector<std::string> failures[2];
  std::vector<std::jthread> writers;
  for (const int writer : {0, 1})
    writers.emplace_back([&, writer] {
      for (int i = 0; i < kWrites; ++i)
        if (const auto written = write(contents[writer]); !written)
          failures[writer].push_back(written.error().message());
      --at_work;
    });
  int strange = 0;
  while (at_work > 0) {
    const auto bytes = read_small_file(path_, 100'000);
    if (!bytes || std::ranges::none_of(contents, [&](const std::string& whole) {
          return same_bytes(*bytes, std::as_bytes(std::span(whole)));
        }))
      ++strange;
  }
  writers.clear();
  EXPECT_EQ(strange, 0);
  for (const auto& failed : failures) EXPECT_THAT(failed, IsEmpty());
  EXPECT_THAT(names(), ElementsAre("record"));
}

}  // namespace
}  // namespace wsync
