// Decided versions that are written to a folder: the newest wins, and `latest` follows a rollback.
#include "trainer_side/publish/directory_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <list>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/loop/timer.h"
#include "tests/unit/weights/weights_files.h"

namespace wsync::publish {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DirectoryPublisherTest : public testing::Test {
 protected:
  std::shared_ptr<const Snapshot> snapshot(std::uint64_t step) {
    // Two tensors, one of them in several buckets.
    std::vector<MemoryTensor> tensors;
    bytes_.push_back(std::vector<std::byte>(3 * limits::kMiB, static_cast<std::byte>(step)));
    tensors.push_back(
        {.info = {.name = "a.weight", .dtype = DType::kU8, .shape = {3 * limits::kMiB}},
         .bytes = std::span<const std::byte>(bytes_.back())});
    tensors.push_back({.info = {.name = "b.weight", .dtype = DType::kU8, .shape = {13}},
                       .bytes = std::span<const std::byte>(bytes_.back()).first(13)});
    auto source = MemorySource::create(std::move(tensors)).value();
    return snapshotter_
        .take(source, {.fence_epoch = 1,
                       .fence_run_id = {1, 2},
                       .version = {.epoch = 1, .step = step},
                       .bucket_bytes = limits::kBucketBytesMin})
        .value();
  }
  std::unique_ptr<DirectoryPublisher> publisher() {
    return DirectoryPublisher::create(*loop_,
                                      {.publish = folder(), .keep = 4, .shard_bytes = limits::kGiB},
                                      [this](const std::string& sentence) {
                                        failures_.push_back(sentence);
                                        loop_->stop();
                                      })
        .value();
  }
  // Runs the loop until `holds`.
  void until(const std::function<bool()>& holds) {
    Timer poll(*loop_, [&] {
      if (holds()) loop_->stop();
    });
    poll.start_repeating(std::chrono::milliseconds(1));
    loop_->run();
  }
  [[nodiscard]] std::string folder() const { return directory_ / "out"; }
  [[nodiscard]] std::vector<std::string> written() const {
    std::vector<std::string> names;
    const auto found = weight_directories(folder());
    if (found)
      for (const auto& [number, name] : *found) names.push_back(name);
    return names;
  }
  [[nodiscard]] std::string latest() const { return test::read_file(folder() + "/latest"); }
  // Whether the newest directory holds a version whose bytes are those that its proof states.
  void expect_content(std::uint64_t step) {
    const auto opened = open_latest_weight_directory(folder()).value();
    const auto proof = weight_proof(opened).value().value();
    EXPECT_EQ(proof.version, (Version{.epoch = 1, .step = step}));
    ContentDigester digester(opened.manifest());
    for (std::uint32_t i = 0; i < opened.manifest().size(); ++i) {
      std::vector<std::byte> bytes(opened.manifest().byte_size(i));
      ASSERT_TRUE(opened.read(i, 0, bytes).has_value());
      EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size(), static_cast<std::byte>(step)));
      ASSERT_TRUE(digester.add(i, 0, bytes).has_value());
    }
    EXPECT_EQ(digester.finish().value().root, proof.content);
  }

  test::TemporaryDirectory directory_;
  std::list<std::vector<std::byte>> bytes_;
  Snapshotter snapshotter_{{.arenas = 4, .threads = 1}};
  std::unique_ptr<Loop> loop_ = Loop::create().value();
  std::vector<std::string> failures_;
};

TEST_F(DirectoryPublisherTest, TheNewestIsWrittenNextAndTheOthersAreLeftOut) {
  const auto publisher = this->publisher();
  for (const std::uint64_t step : {1U, 2U, 3U}) publisher->write(snapshot(step));
  EXPECT_EQ(publisher->facts().behind, 3);
  until([&] { return publisher->facts().behind == 0; });
  EXPECT_THAT(written(), ElementsAre("weight_v000001", "weight_v000003"));
  EXPECT_EQ(latest(), "weight_v000003");
  EXPECT_EQ(publisher->facts().written, (Version{.epoch = 1, .step = 3}));
  expect_content(3);
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(DirectoryPublisherTest, TheNewestIsWrittenBeforeTheEnd) {
  {
    const auto publisher = this->publisher();
    for (const std::uint64_t step : {1U, 2U, 3U}) publisher->write(snapshot(step));
  }
  EXPECT_EQ(latest(), "weight_v000003");
  expect_content(3);
}

TEST_F(DirectoryPublisherTest, LatestFollowsARollback) {
  const auto publisher = this->publisher();
  for (const std::uint64_t step : {1U, 2U}) {
    publisher->write(snapshot(step));
    until([&] { return publisher->facts().behind == 0; });
  }
  publisher->go_back({.epoch = 1, .step = 1}, nullptr);
  until([&] { return publisher->facts().behind == 0; });
  EXPECT_EQ(latest(), "weight_v000001");
  expect_content(1);
  EXPECT_EQ(publisher->facts().failures, 0);
  publisher->go_back({.epoch = 1, .step = 7}, nullptr);
  until([&] { return !failures_.empty(); });
  EXPECT_EQ(publisher->facts().failures, 1);
  EXPECT_EQ(publisher->facts().behind, 1);
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("no directory of version 1.7 any more; `latest` is "
                                               "weight_v000001 as before")));
}

TEST_F(DirectoryPublisherTest, ARollbackToAVersionWithoutADirectoryWritesIt) {
  const auto publisher = this->publisher();
  publisher->write(snapshot(2));
  until([&] { return publisher->facts().behind == 0; });
  publisher->go_back({.epoch = 1, .step = 1}, snapshot(1));
  until([&] { return publisher->facts().behind == 0; });
  EXPECT_EQ(latest(), "weight_v000003");  // a number that no reader knows
  expect_content(1);
  EXPECT_EQ(publisher->facts().written, (Version{.epoch = 1, .step = 1}));
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(DirectoryPublisherTest, NothingIsMissingAfterARollbackThatReplacesAWaitingWrite) {
  const auto publisher = this->publisher();
  for (const std::uint64_t step : {1U, 2U, 3U}) publisher->write(snapshot(step));
  publisher->go_back({.epoch = 1, .step = 1}, nullptr);
  EXPECT_EQ(publisher->facts().behind, 4);
  until([&] { return publisher->facts().behind == 0; });
  EXPECT_THAT(written(), ElementsAre("weight_v000001"));
  expect_content(1);
}

TEST_F(DirectoryPublisherTest, ARollbackIsDoneBeforeTheEnd) {
  {
    const auto publisher = this->publisher();
    publisher->write(snapshot(1));
    until([&] { return publisher->facts().behind == 0; });
    publisher->write(snapshot(2));
    publisher->go_back({.epoch = 1, .step = 1}, nullptr);
  }
  EXPECT_EQ(latest(), "weight_v000001");
}

TEST_F(DirectoryPublisherTest, AWriteThatFailsIsReportedAndTheNextOneIsTried) {
  const auto publisher = this->publisher();
  std::filesystem::create_directories(folder() + "/latest");  // a rename cannot replace it
  publisher->write(snapshot(1));
  until([&] { return !failures_.empty(); });
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("cannot write ")));
  EXPECT_EQ(publisher->facts().failures, 1);
  EXPECT_THAT(written(), IsEmpty());
  std::filesystem::remove_all(folder() + "/latest");
  publisher->write(snapshot(2));
  until([&] { return publisher->facts().behind == 0; });
  expect_content(2);
}

}  // namespace
}  // namespace wsync::publish
