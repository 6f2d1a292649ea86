// Checkpoints that are made from a given one.
#include "shared/weights/example/derived_checkpoint.h"

#include <filesystem>
#include <gtest/gtest.h>

#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/example/example_checkpoint.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::TemporaryDirectory;

const std::atomic<bool> kNotCancelled = false;

std::vector<std::byte> bytes_of(const CheckpointDirectory& checkpoint, std::size_t tensor) {
  std::vector<std::byte> bytes(*checkpoint.manifest().tensor(tensor).byte_size());
  EXPECT_TRUE(checkpoint.read(tensor, 0, bytes));
  return bytes;
}

class Derived : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(make_demo_checkpoint({.directory = from_, .bytes = 4ULL << 20U}));
  }
  TemporaryDirectory directory_;
  const std::string from_ = directory_.path() + "/from";
  const std::string to_ = directory_.path() + "/to";
};

TEST_F(Derived, AChangedCopyHasTheLayoutAndOtherBytesInEveryTensor) {
  ASSERT_TRUE(
      write_changed_copy({.from = from_, .to = to_, .bit = 1, .stride = 4096}, kNotCancelled));
  const auto before = CheckpointDirectory::open(from_);
  const auto after = CheckpointDirectory::open(to_);
  ASSERT_TRUE(before && after) << after.error().message();
  ASSERT_EQ(before->manifest().layout_digest(), after->manifest().layout_digest());
  for (std::size_t t = 0; t < before->manifest().size(); ++t) {
    const auto old_bytes = bytes_of(*before, t);
    const auto new_bytes = bytes_of(*after, t);
    for (std::size_t at = 0; at < old_bytes.size(); ++at)
      ASSERT_EQ(old_bytes[at] ^ new_bytes[at], at % 4096 == 0 ? std::byte{2} : std::byte{0})
          << before->manifest().tensor(t).name << " byte " << at;
  }
}

TEST_F(Derived, ACopyThatIsStoppedLeavesNothing) {
  const std::atomic<bool> cancelled = true;
  const auto copied = write_changed_copy({.from = from_, .to = to_}, cancelled);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::kCancelled);
  const std::filesystem::directory_iterator entries(directory_.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "only the original";
}

TEST_F(Derived, AWrongShapeIsWrongInOneTensorOnly) {
  const auto wrong = write_wrong_shape(from_, to_);
  ASSERT_TRUE(wrong) << wrong.error().message();
  const auto before = CheckpointDirectory::open(from_);
  const auto after = CheckpointDirectory::open(to_);
  ASSERT_TRUE(before && after) << after.error().message();
  ASSERT_EQ(before->manifest().size(), after->manifest().size());
  std::vector<std::string> differ;
  for (std::size_t t = 0; t < before->manifest().size(); ++t)
    if (before->manifest().tensor(t).shape != after->manifest().tensor(t).shape)
      differ.push_back(before->manifest().tensor(t).name);
  EXPECT_EQ(differ, std::vector<std::string>{wrong->tensor});
  EXPECT_NE(wrong->tensor.find("q_proj"), std::string::npos);
  EXPECT_NE(wrong->expected, wrong->found);
}

}  // namespace
}  // namespace wsync::cli
