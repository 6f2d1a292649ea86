// Parts of `wsync demo` that need no fleet; tests/scenario/demo_test.py runs the whole.
#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "deploy/cli/demo_checkpoint.h"
#include "deploy/cli/demo_floor.h"
#include "deploy/cli/demo_trace.h"
#include "deploy/cli/demo_versions.h"
#include "shared/trace/text_file.h"
#include "shared/trace/timeline.h"
#include "shared/weights/checkpoint_dir.h"
#include "tests/unit/cli/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;

const std::atomic<bool> kGoOn = false;

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
  ASSERT_TRUE(write_changed_copy(from_, to_, 1, kGoOn));
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
  const auto copied = write_changed_copy(from_, to_, 0, cancelled);
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

TEST(CopyFloor, IsTheMedianOfAllRounds) {
  CopyFloor floor;
  EXPECT_EQ(floor.bytes_per_s(), 0);
  using std::chrono::seconds;
  floor.add({.bytes = 100, .copiers = 2, .rounds = {seconds(1), seconds(4), seconds(2)}});
  EXPECT_DOUBLE_EQ(floor.bytes_per_s(), 100);
  floor.add({.bytes = 100, .copiers = 2, .rounds = {seconds(1)}});
  EXPECT_DOUBLE_EQ(floor.bytes_per_s(), 150);
  EXPECT_DOUBLE_EQ(floor.slowest(), 50);
  EXPECT_DOUBLE_EQ(floor.fastest(), 200);
}

TEST(CopyFloor, CopiesAsOftenAsAskedAndStopsWhenTold) {
  const auto measured = measure_copy_floor(1ULL << 20U, 3, 2, kGoOn);
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_EQ(measured->rounds.size(), 2U);
  EXPECT_EQ(measured->copiers, 3U);
  EXPECT_EQ(measured->bytes, 1ULL << 20U);
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(measure_copy_floor(1ULL << 20U, 2, 2, cancelled).error().code(), ErrorCode::kCancelled);
}

TEST(DemoTrace, ReadsBackWhatASidecarHasWritten) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/t.json";
  const trace::Span broadcast{.name = "broadcast of bucket 1",
                              .lane = "IPC 1",
                              .category = trace::Category::kBroadcast,
                              .begin = TimePoint{5'000'001},
                              .end = TimePoint{7'000'003},
                              .label = "3",
                              .args = {{.name = "source", .value = std::int64_t{3}}}};
  const trace::Span pause{.name = "paused for 1.2",
                          .lane = "replica r0",
                          .category = trace::Category::kPause,
                          .begin = TimePoint{4'000'000},
                          .end = TimePoint{8'000'000},
                          .label = {},
                          .args = {}};
  ASSERT_TRUE(trace::write_chrome_trace(
      path, {{.name = "sidecar s", .pid = 7, .spans = {pause, broadcast}}}));
  const auto read = read_trace(path);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->name, "sidecar s");
  EXPECT_EQ(read->pid, 7U);
  ASSERT_EQ(read->spans.size(), 2U);
  EXPECT_EQ(read->spans[0].category, trace::Category::kPause);
  EXPECT_EQ(read->spans[0].end, pause.end);
  EXPECT_EQ(read->spans[1].name, broadcast.name);
  EXPECT_EQ(read->spans[1].lane, broadcast.lane);
  EXPECT_EQ(read->spans[1].begin, broadcast.begin);
  EXPECT_EQ(read->spans[1].end, broadcast.end);
  EXPECT_EQ(read->spans[1].label, "3");
  EXPECT_FALSE(read_trace(directory.path() + "/none"));
  ASSERT_TRUE(trace::write_text_file(path, "{}"));
  EXPECT_FALSE(read_trace(path));
}

TEST(Demo, BadArgumentsChangeNothing) {
  EXPECT_EQ(run_command({"demo", "--size", "1MiB"}).exit_code, 2);
  EXPECT_EQ(run_command({"demo", "--engines", "1"}).exit_code, 2);
  EXPECT_EQ(run_command({"demo", "--checkpoint", "/nowhere"}).exit_code, 2);
  const auto both = run_command({"demo", "--checkpoint", "/", "--size", "32MiB", "--json"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_EQ(nlohmann::json::parse(both.out).at("error").at("code"), "invalid_input");
}

}  // namespace
}  // namespace wsync::cli
