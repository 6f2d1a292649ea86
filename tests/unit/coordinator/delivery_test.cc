// A delivery alone: its states, its attempts, and where it reads from.
#include "trainer_side/coordinator/delivery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::coordinator {
namespace {

using testing::HasSubstr;

constexpr TimePoint kSoon{1'000};
const DeliverySource kTcp{.transport = control::TransportKind::kTcp, .address = "tcp://h:1"};

PublishRequested publish_of(std::uint64_t step) {
  return {.version = {1, step}, .layout_digest = {1, 1}, .layout = Bytes(4)};
}

TEST(Delivery, GoesFromTheOfferToStaged) {
  Delivery delivery;
  EXPECT_FALSE(delivery.deadline().has_value());
  const control::Announce announce = delivery.announce(publish_of(1), true, 7, kSoon);
  EXPECT_EQ(announce.layout.size(), 4U);
  EXPECT_EQ(delivery.state(), DeliveryState::kAnnounced);
  EXPECT_EQ(delivery.deadline(), kSoon);
  EXPECT_TRUE(delivery.is_answer(7, {1, 1}, DeliveryState::kAnnounced));
  EXPECT_FALSE(delivery.is_answer(6, {1, 1}, DeliveryState::kAnnounced)) << "of another round";
  EXPECT_FALSE(delivery.is_answer(7, {1, 2}, DeliveryState::kAnnounced)) << "of another version";
  EXPECT_FALSE(delivery.is_answer(7, {1, 1}, DeliveryState::kStaging)) << "not asked yet";
  delivery.accept();
  EXPECT_FALSE(delivery.relays());
  ASSERT_TRUE(delivery.stage(kTcp, kSoon).has_value());
  EXPECT_TRUE(delivery.is_under_way());
  EXPECT_TRUE(delivery.relays());
  EXPECT_TRUE(delivery.reads_from("tcp://h:1"));
  EXPECT_FALSE(delivery.reads_from("tcp://h:2"));
  delivery.complete();
  EXPECT_FALSE(delivery.is_under_way());
  EXPECT_TRUE(delivery.relays()) << "it still has the bytes";
  EXPECT_FALSE(delivery.reads_from("tcp://h:1"));
  EXPECT_FALSE(delivery.deadline().has_value());
  EXPECT_TRUE(delivery.invariants().has_value());
  delivery.forget();
  EXPECT_EQ(delivery.state(), DeliveryState::kNone);
  EXPECT_TRUE(delivery.invariants().has_value());
}

TEST(Delivery, AnUnknownLayoutIsSentOnceMore) {
  Delivery delivery;
  EXPECT_TRUE(delivery.announce(publish_of(1), false, 1, kSoon).layout.empty());
  EXPECT_TRUE(delivery.may_repeat());
  EXPECT_EQ(delivery.repeat(publish_of(1), 2, kSoon).layout.size(), 4U);
  EXPECT_FALSE(delivery.may_repeat());
}

TEST(Delivery, AChainWhoseLinksBreakAgainAndAgainComesToAnEnd) {
  Delivery delivery;
  (void)delivery.announce(publish_of(1), true, 1, kSoon);
  delivery.accept();
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(delivery.stage(kTcp, kSoon).has_value()) << i;
  const auto again = delivery.stage(kTcp, kSoon);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kPeerLost);
  delivery.fail(again.error().message(), kSoon);
  EXPECT_EQ(delivery.state(), DeliveryState::kFailed);
  EXPECT_EQ(delivery.deadline(), kSoon) << "when it is tried again";
  EXPECT_TRUE(delivery.invariants().has_value());
  (void)delivery.announce(publish_of(2), true, 2, kSoon);
  EXPECT_TRUE(delivery.failure().empty());
}

TEST(Delivery, WithoutASourceItCannotStage) {
  Delivery delivery;
  (void)delivery.announce(publish_of(1), true, 1, kSoon);
  delivery.accept();
  const auto stage = delivery.stage({.transport = control::TransportKind::kTcp}, kSoon);
  ASSERT_FALSE(stage.has_value());
  EXPECT_THAT(stage.error().message(), HasSubstr("no data_address is configured"));
}

TEST(Delivery, ReadsFromThisHostUnlessTheHandOverFailed) {
  CoordinatorOptions options;
  options.boot_id = "boot";
  options.host_socket = "/run/host.sock";
  const auto transport = [&](const std::string& boot_id, bool failed) {
    return choose_source(options, boot_id, failed, "tcp://h:1").transport;
  };
  EXPECT_EQ(transport("boot", false), control::TransportKind::kMemfd);
  EXPECT_EQ(transport("boot", true), control::TransportKind::kTcp);
  EXPECT_EQ(transport("other", false), control::TransportKind::kTcp);
  EXPECT_EQ(transport("", false), control::TransportKind::kTcp);
  options.transport = TransportPolicy::kMemfd;
  EXPECT_EQ(transport("other", true), control::TransportKind::kMemfd) << "it was demanded";
  options.transport = TransportPolicy::kTcp;
  EXPECT_EQ(transport("boot", false), control::TransportKind::kTcp);
}

}  // namespace
}  // namespace wsync::coordinator
