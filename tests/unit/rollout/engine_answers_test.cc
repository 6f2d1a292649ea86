// The client against the server of wsync's own engine: both agree about what is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "shared/observe/http/access_token.h"
#include "tests/unit/reference_engine/http/server_fixture.h"
#include "trainer_side/rollout/completion_client.h"

namespace wsync::rollout {
namespace {

using engine::generation::ServiceInfo;
using engine::http::test::Served;
using engine::http::test::tiny_model;
using testing::ElementsAre;
using testing::HasSubstr;

class EngineAnswers : public testing::Test {
 protected:
  // Its model ends texts with a 'c', which is no end of ours.
  EngineAnswers() {
    served_.service.change_info([](ServiceInfo& info) { info.end_token = 'c'; });
    client_ = CompletionClient::create("http://127.0.0.1:" + std::to_string(served_.port()),
                                       std::chrono::seconds(60))
                  .value();
  }
  // Its service reverses the prompt, each byte moved on by the seed.
  static CompletionQuestion question() {
    return {.prompt = "ab\ncd", .answers = 2, .max_tokens = 6, .seed = 0};
  }

  Served served_;
  std::unique_ptr<CompletionClient> client_;
};

TEST_F(EngineAnswers, TheStopIsThereAndNothingElseEnds) {
  const auto rollouts = client_->ask(question());
  ASSERT_TRUE(rollouts) << rollouts.error().message();
  ASSERT_EQ(rollouts->size(), 2U);
  EXPECT_THAT((*rollouts)[0].tokens, ElementsAre('d', 'c', '\n'));
  EXPECT_THAT((*rollouts)[0].log_probabilities, ElementsAre(-0.5F, -1, -1.5F));
  EXPECT_THAT((*rollouts)[0].spans,
              ElementsAre(Span{.start = 0, .end = 3, .version = {.epoch = 1, .step = 7}}));
  // The next seed: another answer, and no stop in it.
  EXPECT_THAT((*rollouts)[1].tokens, ElementsAre('e', 'd', '\n' + 1, 'c', 'b', 'e'));
}

TEST(EngineWithAToken, AnswersAClientThatHasIt) {
  const auto token = http::AccessToken::parse("a-token-of-this-engine", "t").value();
  const Served served({.info = tiny_model()}, {.token = token});
  const std::string url = "http://127.0.0.1:" + std::to_string(served.port());
  const auto client =
      CompletionClient::create(url, std::chrono::seconds(60), token.authorization()).value();
  EXPECT_EQ(client->served().value(), (Version{.epoch = 1, .step = 7}));
  const auto without = CompletionClient::create(url, std::chrono::seconds(60)).value()->served();
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(without.error().message(), HasSubstr("was answered with status 401"));
}

TEST_F(EngineAnswers, TheVersionIsTold) {
  EXPECT_EQ(client_->served().value(), (Version{.epoch = 1, .step = 7}));
  served_.service.change_info([](ServiceInfo& info) { info.has_weights = false; });
  const auto none = client_->served();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(none.error().message(), HasSubstr("'it has no weights yet'"));
}

TEST_F(EngineAnswers, APauseThatAbortsIsABusyEngine) {
  served_.service.hold();
  std::thread pauses([this] {
    served_.service.wait_submitted(2);
    EXPECT_TRUE(served_.post("/pause?mode=abort"));
  });
  const auto rollouts = client_->ask(question());
  pauses.join();
  ASSERT_FALSE(rollouts);
  EXPECT_EQ(rollouts.error().code(), ErrorCode::kBusy) << rollouts.error().message();
}

TEST_F(EngineAnswers, WhatIsCancelledIsNotGeneratedToItsEnd) {
  served_.service.hold();
  std::thread cancels([this] {
    served_.service.wait_submitted(2);
    client_->cancel();
  });
  const auto rollouts = client_->ask(question());
  cancels.join();
  ASSERT_FALSE(rollouts);
  EXPECT_EQ(rollouts.error().code(), ErrorCode::kCancelled) << rollouts.error().message();
  served_.service.wait_cancelled(2);
}

TEST_F(EngineAnswers, ARefusalIsTold) {
  CompletionQuestion none = question();
  none.max_tokens = 0;
  const auto rollouts = client_->ask(none);
  ASSERT_FALSE(rollouts);
  EXPECT_EQ(rollouts.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(rollouts.error().message(), HasSubstr("max_tokens: it is 0"));
}

}  // namespace
}  // namespace wsync::rollout
