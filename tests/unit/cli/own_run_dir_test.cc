// The folder of a push that is a trainer: nothing of it stays, also if it was killed.
#include "deploy/cli/own_run_dir.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include "shared/base/format.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

std::size_t folders_in(const std::string& run_dir) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(run_dir))
    if (entry.is_directory()) ++count;
  return count;
}

TEST(OwnRunDir, IsPrivateAndEndsWithItsOwner) {
  const TemporaryDirectory directory;
  const std::string run_dir = directory.path() + "/run";
  {
    const OwnRunDir own = OwnRunDir::create(run_dir).value();
    EXPECT_EQ(fs::path(own.path()).parent_path(), run_dir);
    struct stat status{};
    ASSERT_EQ(::stat(own.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0700U);
    std::ofstream(own.path() + "/socket") << "x";
  }
  EXPECT_TRUE(fs::is_empty(run_dir));
}

TEST(OwnRunDir, SeveralAtOnceHaveOneEach) {
  const TemporaryDirectory directory;
  const OwnRunDir first = OwnRunDir::create(directory.path()).value();
  auto second = std::make_unique<OwnRunDir>(OwnRunDir::create(directory.path()).value());
  EXPECT_NE(first.path(), second->path());
  second.reset();
  EXPECT_TRUE(fs::exists(first.path()));
  EXPECT_EQ(folders_in(directory.path()), 1U);
}

// Each looks for what killed ones have left while the others are being made.
TEST(OwnRunDir, ManyThatBeginTogetherAreNotTakenForLeftOver) {
  const TemporaryDirectory directory;
  constexpr int kThreads = 8;
  constexpr int kTimes = 100;
  std::vector<std::string> errors(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, thread] {
        for (int time = 0; time < kTimes; ++time) {
          const auto own = OwnRunDir::create(directory.path());
          if (!own) errors[static_cast<std::size_t>(thread)] = own.error().message();
        }
      });
  }
  EXPECT_THAT(errors, testing::Each(testing::IsEmpty()));
}

TEST(OwnRunDir, WhatAKilledOneHasLeftIsRemoved) {
  const TemporaryDirectory directory;
  fs::create_directory(directory.path() + "/push-0123abcd");
  std::ofstream(directory.path() + "/push-0123abcd/lock") << "";
  std::ofstream(directory.path() + "/push-0123abcd/socket") << "";
  fs::create_directory(directory.path() + "/push-without-a-lock");
  fs::create_directory(directory.path() + "/other");
  const OwnRunDir own = OwnRunDir::create(directory.path()).value();
  EXPECT_FALSE(fs::exists(directory.path() + "/push-0123abcd"));
  EXPECT_TRUE(fs::exists(directory.path() + "/push-without-a-lock")) << "it may be in the making";
  EXPECT_TRUE(fs::exists(directory.path() + "/other"));
}

TEST(OwnRunDir, APathThatIsTooLongIsRefused) {
  const TemporaryDirectory directory;
  const std::string run_dir = directory.path() + "/" + std::string(70, 'x');
  const auto own = OwnRunDir::create(run_dir);
  ASSERT_FALSE(own.has_value());
  EXPECT_EQ(own.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(own.error().message(), testing::HasSubstr("at most 72 allowed: set WSYNC_RUN_DIR"));
}

}  // namespace
}  // namespace wsync::cli
