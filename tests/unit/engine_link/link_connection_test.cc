#include "inference_side/engine_link/link_connection.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

#include "shared/base/liveness.h"

namespace wsync::engine {
namespace {

class Losses final : public LinkHandler {
 public:
  std::pair<control::Envelope, control::EngineHello> make_hello() override { return {}; }
  void handle_wake() override {}
  void handle_frame(control::Frame /*frame*/) override {}
  void handle_malformed(const std::optional<control::Envelope>& /*envelope*/,
                        const Error& /*error*/) override {}
  void handle_loss(const std::string& why) override { said.push_back(why); }
  std::vector<std::string> said;
};

TEST(LinkConnection, ARankThatIsRefusedAgainAndAgainAsksLessAndLessOften) {
  Losses losses;
  const auto connection = LinkConnection::create("/nowhere/s.engines", losses).value();
  const auto refuse = [&] {
    connection->refused();
    connection->disconnect("refused");
    return connection->pause_ms();
  };
  std::int64_t expected = limits::kReconnectMinMs;
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(refuse(), expected) << i;
    expected = std::min(2 * expected, kRefusedRetryMaxMs);
  }
  EXPECT_EQ(expected, kRefusedRetryMaxMs);
  // The sidecar has restarted: something may have changed.
  connection->disconnect("lost");
  EXPECT_EQ(connection->pause_ms(), limits::kReconnectMinMs);
  EXPECT_EQ(refuse(), limits::kReconnectMinMs);
  EXPECT_EQ(losses.said.size(), 14U);
}

TEST(LinkConnection, ASidecarThatIsAwayIsLookedForOften) {
  Losses losses;
  const auto connection = LinkConnection::create("/nowhere/s.engines", losses).value();
  for (int i = 0; i < 12; ++i) connection->disconnect("away");
  EXPECT_EQ(connection->pause_ms(), limits::kReconnectMaxMs);
}

TEST(LinkConnection, AnAlarmEndsAPollOnceAndMayBeSetAgain) {
  Losses losses;
  const auto connection = LinkConnection::create("/nowhere/s.engines", losses).value();
  ASSERT_TRUE(connection->poll(0));  // it has looked for the sidecar
  connection->suspend("the test");
  for (int turn = 0; turn < 3; ++turn) {
    const TimePoint time = now() + std::chrono::milliseconds(5);
    connection->wake_at(time);
    connection->wake_at(time);
    ASSERT_TRUE(connection->poll(60'000));
    EXPECT_GE(now(), time);
    EXPECT_FALSE(connection->has_event());
  }
  connection->wake_at(now());
  ASSERT_TRUE(connection->poll(60'000));
  connection->wake_at(now() + std::chrono::milliseconds(1));
  connection->wake_at(std::nullopt);
  ASSERT_TRUE(connection->poll(20));
  EXPECT_FALSE(connection->has_event());
  // What is set does not outlive a suspension.
  connection->wake_at(now());
  connection->suspend("the test");
  EXPECT_FALSE(connection->has_event());
}

}  // namespace
}  // namespace wsync::engine
