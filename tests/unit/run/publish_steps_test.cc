// When a trainer's rank asks for a step to be published once more. With a fleet, and with ranks
// that are lost: tests/scenario.
#include "trainer_side/run/publish_steps.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "trainer_side/run/setup.h"

namespace wsync::cli {
namespace {

using testing::HasSubstr;

// One rank, and nobody that it could publish to.
class TrainPublish : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(root_.path() + "/text") << std::string(4096, 'a');
    const auto config = config::parse_train(
        "steps: 9", "t.yaml",
        {.set = {"data.files=" + root_.path() + "/text", "parallel.pp=1", "model.hidden=16",
                 "publish.run_dir=" + root_.path() + "/run",
                 "publish.state_dir=" + root_.path() + "/state", "deadline=200ms"}});
    ASSERT_TRUE(config.has_value()) << config.error().message();
    publish_ = *config->publish;
    rank_ = training::TrainingRank::create(training_options(*config).value(), nullptr).value();
  }
  Result<std::unique_ptr<StepPublisher>> publisher(std::uint32_t incarnation = 0) {
    return StepPublisher::create(
        publish_, *rank_, [this](const nlohmann::json& event) { told_.push_back(event); },
        [] { return false; }, incarnation);
  }

  test::TemporaryDirectory root_;
  config::PublishConfig publish_;
  std::unique_ptr<training::TrainingRank> rank_;
  std::vector<nlohmann::json> told_;
};

TEST_F(TrainPublish, AStepOfWhichNoVersionCameIsAskedForAgain) {
  const auto rank = publisher().value();
  EXPECT_TRUE(rank->must_publish_again(5));  // by this process it never was
  rank->publish(5);
  EXPECT_FALSE(rank->must_publish_again(5));  // it goes on
  rank->wait_snapshotted();
  EXPECT_TRUE(rank->must_publish_again(5));
  EXPECT_FALSE(rank->must_publish_again(4));
  EXPECT_TRUE(rank->must_publish_again(6));
  rank->publish(5);
  EXPECT_FALSE(rank->must_publish_again(5));
  rank->wait_snapshotted();
  rank->notify_ended();
  rank->end_all();
  EXPECT_FALSE(rank->must_publish_again(6));  // of what has ended nothing is asked for
  rank->publish(5);                           // by another rank it may be
  rank->wait_snapshotted();
  rank->notify_ended();
  ASSERT_EQ(told_.size(), 3U);
  for (const nlohmann::json& event : told_) {
    EXPECT_EQ(event["step"], 5);
    EXPECT_EQ(event["state"], "failed");
    EXPECT_THAT(event["reason"].get<std::string>(), HasSubstr("0 of at least 1 sidecars"));
  }
}

TEST_F(TrainPublish, ALaterProcessTakesTheAddressesOfOneThatStandsStill) {
  const auto first = publisher().value();
  const auto beside = publisher();
  ASSERT_FALSE(beside.has_value());
  EXPECT_EQ(beside.error().code(), ErrorCode::kBusy);
  EXPECT_TRUE(publisher(1).has_value());
}

}  // namespace
}  // namespace wsync::cli
