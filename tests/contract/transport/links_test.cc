// What every kind that copies does for a receiver that is behind: its source does not offer the
// version any more that the receiver holds, but has told others what has changed since.
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utility>

#include "shared/transport/make_transport.h"
#include "shared/weights/patch/leaf_changes.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/private_directory.h"

namespace wsync::transport {
namespace {

class Links : public ::testing::TestWithParam<TransportTraits> {
 protected:
  struct End {
    End(std::unique_ptr<Transport> made, std::uint64_t bytes)
        : transport(std::move(made)),
          source(transport->listen().value()),
          receiver(transport->make_sink({}).value(), bytes) {}
    std::unique_ptr<Transport> transport;
    std::unique_ptr<BucketSource> source;
    Receiver receiver;
  };
  [[nodiscard]] std::unique_ptr<End> make_end() {
    return std::make_unique<End>(make_transport(GetParam().kind, loop_.post(),
                                                {.run_dir = directory_.path().string(),
                                                 .name = "end" + std::to_string(++made_),
                                                 .secret = kTestSecret,
                                                 .link_hold = std::chrono::minutes(1)})
                                     .value(),
                                 kModelBytes);
  }
  // The copy of a version that a receiver holds.
  [[nodiscard]] static FetchBase held(const TestVersion& version, bool with_sums = false) {
    auto copy = std::make_shared<std::pair<Bytes, std::vector<WordSum>>>(
        Bytes(version.data().begin(), version.data().end()), version.sums());
    return {
        .version = version.key().version,
        .data = copy->first,
        .hold = copy,
        .blocks = version.blocks(),
        .max_share = 0.4,
        .sums = with_sums ? std::span<const WordSum>(copy->second) : std::span<const WordSum>()};
  }
  void run(End& to, FetchRequest request) {
    const auto begun = to.receiver.receive(std::move(request));
    ASSERT_TRUE(begun.has_value()) << begun.error().message();
    ASSERT_TRUE(loop_.run_until([&] { return to.receiver.is_over(); }));
    EXPECT_FALSE(to.receiver.failure.has_value()) << to.receiver.failure_text();
  }
  // Fetches a version, and compares every byte.
  std::unique_ptr<End> fetch(const TestVersion& wanted, FetchBase base) {
    auto to = make_end();
    FetchRequest request = to->receiver.wanted(wanted, from_->source->address());
    request.base = std::move(base);
    run(*to, std::move(request));
    EXPECT_TRUE(to->receiver.holds(wanted));
    return to;
  }
  void offer(const TestVersion& version) { from_->source->offer(version.offer()); }
  void withdraw(const TestVersion& version) {
    from_->source->withdraw(version.key().version, "its memory is needed");
  }

  static constexpr std::uint64_t kModelBytes = 8 * limits::kMiB + 300;
  OwnerLoop loop_;
  PrivateDirectory directory_{"wsync_links"};
  int made_ = 0;
  TestVersion first_{1};
  TestVersion second_{2, first_, 2'000};
  TestVersion third_{3, second_, 3'000};
  TestVersion fourth_{4, third_, 5'000};
  std::unique_ptr<End> from_ = make_end();
};

TEST_P(Links, WhoIsTwoBehindGetsOnlyWhatChanges) {
  offer(first_);
  offer(second_);
  const auto one = fetch(second_, held(first_));
  withdraw(first_);
  offer(third_);
  const auto two = fetch(third_, held(first_));
  EXPECT_EQ(two->receiver.by_changes, third_.buckets().size());
  EXPECT_GT(two->receiver.payload_bytes, one->receiver.payload_bytes);
  EXPECT_LT(two->receiver.payload_bytes, 2 * one->receiver.payload_bytes);
  EXPECT_LT(two->receiver.payload_bytes, kModelBytes / 100);
  const auto behind_by_one = fetch(third_, held(second_));
  EXPECT_EQ(behind_by_one->receiver.by_changes, third_.buckets().size());
}

TEST_P(Links, WhoIsThreeBehindGetsThemOverTwoWithdrawnVersions) {
  offer(first_);
  offer(second_);
  fetch(second_, held(first_));
  withdraw(first_);
  offer(third_);
  fetch(third_, held(second_));
  withdraw(second_);
  offer(fourth_);
  fetch(fourth_, held(third_));
  withdraw(third_);
  const auto behind = fetch(fourth_, held(first_));
  EXPECT_EQ(behind->receiver.by_changes, fourth_.buckets().size());
  EXPECT_LT(behind->receiver.payload_bytes, kModelBytes / 100);
}

TEST_P(Links, AWithdrawnVersionsMemoryIsReleasedWhenTheLinksOverItAreMerged) {
  offer(first_);
  Offer middle = second_.offer();
  bool is_released = false;
  middle.hold = std::shared_ptr<const void>(
      middle.hold.get(), [&, hold = middle.hold, post = loop_.post()](const void*) {
        post([&] { is_released = true; });
      });
  from_->source->offer(std::move(middle));
  fetch(second_, held(first_));
  withdraw(first_);
  offer(third_);
  fetch(third_, held(second_));
  withdraw(second_);
  ASSERT_TRUE(loop_.run_until([&] { return is_released; }));
  const auto behind = fetch(third_, held(first_));
  EXPECT_EQ(behind->receiver.by_changes, third_.buckets().size());
}

TEST_P(Links, ABucketWithoutALinkTravelsInFull) {
  offer(first_);
  offer(second_);
  // Somebody who had all but two of the buckets.
  auto to = make_end();
  FetchRequest request = to->receiver.wanted(second_, from_->source->address());
  request.base = held(first_);
  request.have = std::vector<bool>(second_.buckets().size(), true);
  request.have[2] = request.have[5] = false;
  run(*to, std::move(request));
  withdraw(first_);
  offer(third_);
  const auto behind = fetch(third_, held(first_));
  EXPECT_EQ(behind->receiver.by_changes, 2U);
}

TEST_P(Links, WhatNobodyHasAskedForTravelsInFull) {
  offer(first_);
  offer(second_);
  withdraw(first_);
  offer(third_);
  const auto behind = fetch(third_, held(first_));
  EXPECT_EQ(behind->receiver.by_changes, 0U);
}

TEST_P(Links, MoreThanIsKeptTravelsInFull) {
  // What changes has 6 % of the model, and 7 % are kept: of the older of two links a part is left.
  const TestVersion near(2, first_, 34);
  const TestVersion far(3, near, 35);
  offer(first_);
  offer(near);
  EXPECT_EQ(fetch(near, held(first_))->receiver.by_changes, near.buckets().size());
  withdraw(first_);
  offer(far);
  EXPECT_EQ(fetch(far, held(near))->receiver.by_changes, far.buckets().size());
  const auto behind = fetch(far, held(first_));
  EXPECT_GT(behind->receiver.by_changes, 0U);
  EXPECT_LT(behind->receiver.by_changes, far.buckets().size());
}

TEST_P(Links, AnotherBaseThanTheLinksIsFoundAndTheRestComesInFull) {
  offer(first_);
  offer(second_);
  fetch(second_, held(first_));
  withdraw(first_);
  offer(third_);
  // A receiver whose copy has other bytes under this name.
  const TestVersion other(1, first_, 50'000);
  const auto behind = fetch(third_, held(other));
  EXPECT_LT(behind->receiver.by_changes, third_.buckets().size());
}

TEST_P(Links, TheChangesAloneCanBeFetchedByWhoIsBehind) {
  offer(first_);
  offer(second_);
  fetch(second_, held(first_));
  withdraw(first_);
  offer(third_);
  auto to = make_end();
  Bytes data(first_.data().begin(), first_.data().end());
  std::size_t arrived = 0;
  to->receiver.on_arrived = [&](const ArrivedBucket& bucket) {
    ASSERT_NE(bucket.changes, nullptr);
    EXPECT_EQ(bucket.digest, third_.digest(bucket.bucket));
    const auto leaves = third_.leaves()->bucket(bucket.bucket);
    const auto blocks = patch::read_leaf_changes(*third_.blocks(), leaves, *bucket.changes);
    ASSERT_TRUE(blocks.has_value()) << blocks.error().message();
    ASSERT_TRUE(patch::exchange_leaf_changes(*third_.blocks(), leaves, *blocks, data));
    ++arrived;
  };
  FetchRequest request = to->receiver.wanted(third_, from_->source->address());
  request.into = {};
  request.hold = nullptr;
  request.base = held(first_, true);
  run(*to, std::move(request));
  EXPECT_EQ(arrived, third_.buckets().size());
  EXPECT_TRUE(same_bytes(data, third_.data()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Links, ::testing::ValuesIn(kinds_that_copy()),
                         [](const auto& kind) { return std::string(kind.param.kind); });

}  // namespace
}  // namespace wsync::transport
