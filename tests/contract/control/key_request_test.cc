// Requests of commands to a router with keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <thread>

#include "shared/control/zmq/request.h"
#include "tests/contract/control/key_fixture.h"

namespace wsync::control {
namespace {

using testing::HasSubstr;

class KeyRequest : public KeyPort {
 protected:
  // Answers each request on the loop of this thread while `ask` runs on another one.
  Result<Decoded> ask(std::optional<KeyFile> key) {
    listen({.on_message =
                [&](const std::string& peer, const Envelope& envelope, const Message& message) {
                  if (std::holds_alternative<Status>(message))
                    std::ignore = router_->send(peer, envelope, StatusReply{});
                },
            .why_refused = [](const KeyOwner& sender,
                              const Message& message) -> std::optional<std::string> {
              if (sender.role == KeyRole::kReader && std::holds_alternative<Push>(message))
                return "a reader may not push";
              return std::nullopt;
            }});
    const RequestOptions options{.address = router_->address(),
                                 .connect_deadline = connect_deadline_,
                                 .times = kPatientTimes,
                                 .key = std::move(key)};
    std::optional<Result<Decoded>> outcome;
    std::jthread command([&] {
      outcome = request(options, {}, message_);
      loop_->stop();
    });
    loop_->run();
    command.join();
    return std::move(*outcome);
  }
  Message message_ = Status{};
  milliseconds connect_deadline_{30'000};
};

TEST_F(KeyRequest, IsAnsweredIfItsKeyIsListed) {
  const auto reply = ask(keys_.list(KeyRole::kReader, "eve"));
  ASSERT_TRUE(reply.has_value()) << reply.error().message();
  EXPECT_TRUE(std::holds_alternative<StatusReply>(reply->message));
}

TEST_F(KeyRequest, BeyondTheRoleOfItsKeyEndsWithTheReason) {
  message_ = Push{.directory = "/models/x"};
  const auto reply = ask(keys_.list(KeyRole::kReader, "eve"));
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code(), ErrorCode::kRefused);
  EXPECT_EQ(reply.error().message(), "a reader may not push");
}

TEST_F(KeyRequest, WithAnUnlistedKeyEndsAtOnce) {
  const auto reply = ask(keys_.unlisted(KeyRole::kReader, "eve"));
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(reply.error().message(), HasSubstr("does not admit the key of reader eve"));
}

TEST_F(KeyRequest, WithoutAKeyEndsAtOnce) {
  const auto reply = ask(std::nullopt);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(reply.error().message(), HasSubstr("admits only who has a key"));
}

TEST_F(KeyRequest, ToAnotherCoordinatorSaysSoAtTheDeadline) {
  KeyFile key = keys_.list(KeyRole::kReader, "eve");
  key.server_key = make_key_pair().value().public_key;
  connect_deadline_ = milliseconds(300);
  const auto reply = ask(key);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(reply.error().message(), HasSubstr("not the coordinator that the key of reader eve"));
}

}  // namespace
}  // namespace wsync::control
