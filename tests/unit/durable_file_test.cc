#include "shared/base/durable_file.h"

#include <cerrno>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

bool directories_cannot_be_flushed = false;

}  // namespace

// In the place of the C library's, for this whole test program.
extern "C" int fsync(int fd) {
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
  ASSERT_TRUE(write("new").has_value());
  EXPECT_EQ(content(), "new");
  EXPECT_THAT(names(), ElementsAre("record"));
}

}  // namespace
}  // namespace wsync
