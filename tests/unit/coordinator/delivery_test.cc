// A delivery alone: its states, its attempts, and where it reads from.
#include "trainer_side/coordinator/delivery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::coordinator {
namespace {

using testing::HasSubstr;

constexpr TimePoint kSoon{1'000};
const control::TransportAddress kTcp{.kind = "tcp", .address = "tcp://h:1"};

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
  ASSERT_TRUE(delivery.stage(kTcp, {}, kSoon).has_value());
  EXPECT_TRUE(delivery.is_under_way());
  EXPECT_TRUE(delivery.relays());
  EXPECT_TRUE(delivery.reads_from({{"memfd", ""}, kTcp}));
  EXPECT_FALSE(delivery.reads_from({{"tcp", "tcp://h:2"}, {"memfd", "tcp://h:1"}}));
  EXPECT_FALSE(delivery.reads_from({}));
  delivery.complete();
  EXPECT_FALSE(delivery.is_under_way());
  EXPECT_TRUE(delivery.relays()) << "it still has the bytes";
  EXPECT_FALSE(delivery.reads_from({kTcp}));
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
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(delivery.stage(kTcp, {}, kSoon).has_value()) << i;
  const auto again = delivery.stage(kTcp, {}, kSoon);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kPeerLost);
  delivery.fail(again.error().message(), kSoon);
  EXPECT_EQ(delivery.state(), DeliveryState::kFailed);
  EXPECT_EQ(delivery.deadline(), kSoon) << "when it is tried again";
  EXPECT_TRUE(delivery.invariants().has_value());
  (void)delivery.announce(publish_of(2), true, 2, kSoon);
  EXPECT_TRUE(delivery.failure().empty());
}

TEST(Delivery, AMappedVersionIsNotRelayed) {
  Delivery delivery;
  (void)delivery.announce(publish_of(1), true, 1, kSoon);
  delivery.accept();
  ASSERT_TRUE(
      delivery.stage({.kind = "memfd", .address = "/run/host.sock"}, {}, kSoon).has_value());
  EXPECT_FALSE(delivery.relays());
  delivery.complete();
  EXPECT_FALSE(delivery.relays());
}

}  // namespace
}  // namespace wsync::coordinator
