// Folders of weight directories: their form, what a killed writer leaves, and what is refused.
#include "shared/weights/weight_directory.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/fail_point.h"
#include "shared/weights/output_file.h"
#include "tests/unit/weights/weights_files.h"

namespace wsync {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WeightDirectoryTest : public testing::Test {
 protected:
  static Manifest manifest() {
    return Manifest::create({{.name = "a", .dtype = DType::kF32, .shape = {100}},
                             {.name = "b", .dtype = DType::kU8, .shape = {7}}})
        .value();
  }
  // Bytes that follow from the step, and their proof.
  static WeightProof proof(std::uint64_t step) {
    return {.version = {.epoch = 1, .step = step}, .content = {.low = step, .high = 1}};
  }
  static Result<std::string> write(WeightDirectoryWriter& writer, std::uint64_t step) {
    return writer.write(manifest(), proof(step),
                        [step](std::size_t i, std::uint64_t offset, std::span<std::byte> out) {
                          return test::fill_content(i + step, offset, out);
                        });
  }
  [[nodiscard]] WeightDirectoryWriter writer(std::uint32_t keep = 2) const {
    return WeightDirectoryWriter::open(folder_.path(), {.keep = keep, .shard_bytes = 200}).value();
  }
  void expect_step(std::uint64_t step) const {
    const auto opened = open_latest_weight_directory(folder_.path());
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    EXPECT_EQ(weight_proof(*opened).value(), proof(step));
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<std::byte> found(opened->manifest().byte_size(i));
      std::vector<std::byte> expected(found.size());
      ASSERT_TRUE(opened->read(i, 0, found).has_value());
      ASSERT_TRUE(test::fill_content(i + step, 0, expected).has_value());
      EXPECT_EQ(found, expected);
    }
  }
  test::TemporaryDirectory folder_;
};

TEST_F(WeightDirectoryTest, NamesHaveSixDigitsAtLeast) {
  EXPECT_EQ(weight_directory_name(12), "weight_v000012");
  EXPECT_EQ(weight_directory_name(12345678), "weight_v12345678");
  EXPECT_EQ(weight_directory_number("weight_v000012"), 12);
  for (const char* name : {"weight_v", "weight_v12x", "step_12", ".weight_v000012.4-0.tmp"})
    EXPECT_EQ(weight_directory_number(name), std::nullopt) << name;
}

TEST_F(WeightDirectoryTest, WhatIsWrittenIsTheLatestAndTheOldestGo) {
  {
    WeightDirectoryWriter writer = this->writer();
    for (const std::uint64_t step : {12U, 13U, 14U}) EXPECT_TRUE(write(writer, step).has_value());
    EXPECT_THAT(folder_.names(),
                ElementsAre(".writer.lock", "latest", "weight_v000013", "weight_v000014"));
    expect_step(14);
    // A version that is there is not written again, and an older one may be the latest.
    EXPECT_EQ(write(writer, 13), "weight_v000013");
    expect_step(13);
    EXPECT_EQ(writer.point_to({.epoch = 1, .step = 14}), "weight_v000014");
    const auto second = WeightDirectoryWriter::open(folder_.path(), {});
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  }
  // A step that has gone by gets a number that no reader knows.
  WeightDirectoryWriter writer = this->writer(1);
  EXPECT_EQ(write(writer, 2), "weight_v000015");
  EXPECT_THAT(folder_.names(), ElementsAre(".writer.lock", "latest", "weight_v000015"));
}

TEST_F(WeightDirectoryTest, DirectoriesOfOtherProgramsStay) {
  for (const std::uint64_t number : {1U, 2U, 3U, 4U}) {
    const std::string other = folder_ / weight_directory_name(number);
    std::filesystem::create_directory(other);
    std::ofstream(other + "/mine.txt") << "x";
  }
  WeightDirectoryWriter writer = this->writer(1);
  for (const std::uint64_t step : {5U, 6U, 7U}) ASSERT_TRUE(write(writer, step).has_value());
  EXPECT_THAT(folder_.names(),
              ElementsAre(".writer.lock", "latest", "weight_v000001", "weight_v000002",
                          "weight_v000003", "weight_v000004", "weight_v000007"));
}

TEST_F(WeightDirectoryTest, NumbersThatAreTooHighAreIgnored) {
  std::filesystem::create_directory(folder_ / "weight_v18446744073709551615");
  WeightDirectoryWriter writer = this->writer(1);
  EXPECT_EQ(write(writer, 5), "weight_v000005");
  EXPECT_EQ(write(writer, 6), "weight_v000006");
  std::filesystem::create_directory(folder_ / "weight_v9223372036854775807");
  const auto refused = write(writer, 7);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), HasSubstr("weight_v9223372036854775807 has the highest"));
}

TEST_F(WeightDirectoryTest, FilesOfTwoVersionsAreRefused) {
  {
    WeightDirectoryWriter writer = this->writer();
    ASSERT_TRUE(write(writer, 1).has_value());
    ASSERT_TRUE(write(writer, 2).has_value());
  }
  std::filesystem::rename(folder_ / "weight_v000001/model-00001-of-00002.safetensors",
                          folder_ / "weight_v000002/model-00001-of-00002.safetensors");
  const auto opened = open_latest_weight_directory(folder_.path()).value();
  const auto mixed = weight_proof(opened);
  ASSERT_FALSE(mixed.has_value());
  EXPECT_THAT(mixed.error().message(), HasSubstr("it is of another version than"));
}

TEST_F(WeightDirectoryTest, SigkillAtEachStepLeavesACompleteLatest) {
  {
    WeightDirectoryWriter writer = this->writer(1);
    ASSERT_TRUE(write(writer, 1).has_value());
  }
  bool survived = false;
  std::uint64_t hits = 1;
  for (; !survived && hits < 200; ++hits) {
    const test::TemporaryDirectory copy;
    std::filesystem::copy(folder_.path(), copy.path(), std::filesystem::copy_options::recursive);
    const pid_t child = ::fork();
    if (child == 0) {
      auto writer = WeightDirectoryWriter::open(copy.path(), {.keep = 1, .shard_bytes = 200});
      arm_fail_point(std::string(kWriteFailPoint), hits);
      ::_exit(writer && write(*writer, 2) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    survived = WIFEXITED(status);
    ASSERT_TRUE(survived ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << hits;
    const auto opened = open_latest_weight_directory(copy.path());
    ASSERT_TRUE(opened.has_value()) << hits << ": " << opened.error().message();
    const auto found = weight_proof(*opened).value().value();
    EXPECT_TRUE(found == proof(1) || found == proof(2)) << hits;
    EXPECT_TRUE(!survived || found == proof(2)) << hits;
    auto next = WeightDirectoryWriter::open(copy.path(), {.keep = 1});
    ASSERT_TRUE(next.has_value()) << next.error().message();
    for (const std::string& name : copy.names()) EXPECT_FALSE(name.ends_with(".tmp")) << hits;
    ASSERT_TRUE(write(*next, 3).has_value());
    EXPECT_EQ(copy.names().size(), 3) << hits;  // the lock, `latest` and one directory
  }
  EXPECT_TRUE(survived);
  EXPECT_GT(hits, 15);
}

}  // namespace
}  // namespace wsync
