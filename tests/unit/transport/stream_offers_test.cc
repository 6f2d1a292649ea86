// What a source sends to a receiver that holds a version which it may not offer any more: the
// changes lead from that version to the one that is asked for, bit for bit, or there are none.
#include "shared/transport/stream_offers.h"

#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/captured_log.h"

namespace wsync::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StreamOffersTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBuckets = 3;
  static constexpr std::uint64_t kModelBytes = 2 * limits::kMiB + 301;
  static constexpr TimePoint kStart{1'000'000'000};
  static constexpr TimePoint kTooLate =
      kStart + std::chrono::milliseconds(limits::kStreamLinkHoldMs + 1);

  // A version that follows one in `every` changes of bytes on the last one.
  const TestVersion& next(std::uint64_t every) {
    const auto step = static_cast<std::uint64_t>(versions_.size() + 1);
    versions_.push_back(versions_.empty()
                            ? std::make_unique<TestVersion>(step, kModelBytes)
                            : std::make_unique<TestVersion>(step, *versions_.back(), every));
    return *versions_.back();
  }
  // The version after so many that were made.
  [[nodiscard]] const TestVersion& version(std::uint64_t step) const {
    return *versions_[step - 1];
  }
  void offer_next(std::uint64_t every = 2'000) { offers_.offer(next(every).offer()); }
  void offer(std::uint64_t step) { offers_.offer(version(step).offer()); }
  void withdraw(std::uint64_t step) { EXPECT_TRUE(offers_.withdraw(name(step), kStart)); }
  [[nodiscard]] static Version name(std::uint64_t step) { return {.epoch = 1, .step = step}; }

  [[nodiscard]] Frame get(std::uint64_t to, std::uint64_t from, std::uint64_t bucket,
                          std::uint64_t changes_max) const {
    return {.type = FrameType::kGet,
            .key = version(to).key(),
            .bucket = bucket,
            .bytes = version(to).buckets()[bucket].bytes,
            .base = name(from),
            .changes_max = changes_max};
  }
  // What a receiver of `to` gets that holds `from`, checked byte by byte.
  StreamOffers::Changes changes(std::uint64_t to, std::uint64_t from, std::uint64_t bucket,
                                std::uint64_t changes_max = limits::kMiB) {
    const auto offered = offers_.find(name(to));
    EXPECT_NE(offered, nullptr);
    if (!offered || !offered->ready[bucket]) return nullptr;
    auto sent = offers_.changes(*offered, get(to, from, bucket, changes_max));
    if (sent) expect_leads(*sent, from, to, bucket);
    return sent;
  }
  void expect_leads(const Bytes& changes, std::uint64_t from, std::uint64_t to,
                    std::uint64_t bucket) const {
    const TestVersion& target = version(to);
    const auto leaves = target.leaves()->bucket(bucket);
    const auto blocks = patch::read_leaf_changes(*target.blocks(), leaves, changes);
    ASSERT_TRUE(blocks.has_value()) << blocks.error().message();
    Bytes data(version(from).data().begin(), version(from).data().end());
    const auto back = patch::exchange_leaf_changes(*target.blocks(), leaves, *blocks, data);
    ASSERT_TRUE(back.has_value()) << back.error().message();
    const BucketWindow window = target.buckets()[bucket];
    EXPECT_TRUE(
        same_bytes(std::span(data).subspan(window.offset, window.bytes), target.bucket(bucket)))
        << "from " << from << " to " << to << ", bucket " << bucket;
  }
  // How many buckets come as changes.
  std::size_t served(std::uint64_t to, std::uint64_t from) {
    std::size_t count = 0;
    for (std::uint64_t bucket = 0; bucket < kBuckets; ++bucket)
      count += changes(to, from, bucket) ? 1U : 0U;
    return count;
  }
  void offer_alone();
  void merge_leaving() {
    while (offers_.merge_leaving(kStart)) {
    }
  }
  void merge_idle() {
    while (offers_.merge_idle()) {
    }
  }
  [[nodiscard]] Offer without_memory(std::uint64_t step) const {
    Offer offer = version(step).offer();
    offer.data = {};
    offer.hold = nullptr;
    offer.complete = false;
    return offer;
  }
  // Of an offer whose memory the test watches.
  std::weak_ptr<const void> offer_watched(std::uint64_t step) {
    Offer offer = version(step).offer();
    std::weak_ptr<const void> watched = offer.hold;
    offers_.offer(std::move(offer));
    return watched;
  }

  StreamOffers offers_;
  std::vector<std::unique_ptr<TestVersion>> versions_;
};

TEST_F(StreamOffersTest, WhoIsTwoBehindGetsWhatBothChange) {
  offer_next();
  offer_next(2'000);
  EXPECT_EQ(served(2, 1), kBuckets);
  withdraw(1);
  offer_next(3'000);
  EXPECT_EQ(served(3, 1), kBuckets);
  EXPECT_EQ(served(3, 2), kBuckets);
  const auto both = changes(3, 1, 0);
  EXPECT_LT(both->size(), changes(2, 1, 0)->size() + changes(3, 2, 0)->size());
  EXPECT_LT(both->size(), version(3).buckets()[0].bytes / 100);
}

TEST_F(StreamOffersTest, WhatWasToldOnceIsNotComparedAgain) {
  offer_next();
  offer_next();
  EXPECT_EQ(changes(2, 1, 0), changes(2, 1, 0));
}

TEST_F(StreamOffersTest, ABucketThatNobodyHasAskedForHasNoLink) {
  offer_next();
  offer_next();
  EXPECT_NE(changes(2, 1, 1), nullptr);
  withdraw(1);
  offer_next(3'000);
  EXPECT_EQ(changes(3, 1, 0), nullptr);
  EXPECT_NE(changes(3, 1, 1), nullptr);
  EXPECT_EQ(changes(3, 1, 2), nullptr);
}

TEST_F(StreamOffersTest, AChainOfWithdrawnVersionsIsMerged) {
  offer_next();
  for (std::uint64_t step = 2; step <= 4; ++step) {
    offer_next(1'000 + step * 700);
    EXPECT_EQ(served(step, step - 1), kBuckets);
    withdraw(step - 1);
    merge_leaving();
  }
  EXPECT_EQ(served(4, 1), kBuckets);
  EXPECT_EQ(served(4, 2), kBuckets);
  EXPECT_EQ(served(4, 3), kBuckets);
}

// Several are withdrawn before the first one is merged.
TEST_F(StreamOffersTest, AChainIsMergedAlsoIfAllOfItLeavesAtOnce) {
  for (std::uint64_t step = 1; step <= 4; ++step) {
    offer_next(1'000 + step * 700);
    if (step > 1) {
      EXPECT_EQ(served(step, step - 1), kBuckets);
    }
  }
  for (const std::uint64_t step : {2U, 1U, 3U}) withdraw(step);
  merge_leaving();
  EXPECT_EQ(served(4, 1), kBuckets);
}

TEST_F(StreamOffersTest, AVersionThatLeavesIsStillReadForWhoAsksNow) {
  offer_next();
  const TestVersion& middle = next(2'000);
  const auto watched = offer_watched(2);
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_NE(changes(3, 2, 0), nullptr);
  withdraw(1);
  withdraw(2);
  EXPECT_FALSE(watched.expired()) << "links over it are not merged yet";
  EXPECT_EQ(served(3, 1), kBuckets);
  merge_leaving();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(served(3, 1), kBuckets);
  EXPECT_EQ(offers_.find(middle.key().version), nullptr);
}

TEST_F(StreamOffersTest, MemoryIsNotHeldIfNothingIsToBeMerged) {
  next(0);
  next(2'000);
  const auto first = offer_watched(1);
  const auto second = offer_watched(2);
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_EQ(served(3, 2), kBuckets);
  withdraw(1);
  EXPECT_TRUE(first.expired());
  merge_idle();
  withdraw(2);
  EXPECT_TRUE(second.expired()) << "what leads over it was merged while there was time";
  EXPECT_FALSE(offers_.merge_leaving(kStart));
  EXPECT_EQ(served(3, 1), kBuckets);
}

TEST_F(StreamOffersTest, MemoryIsHeldForAMomentOnly) {
  offer_next();
  next(2'000);
  const auto watched = offer_watched(2);
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_EQ(served(3, 2), kBuckets);
  withdraw(1);
  withdraw(2);
  EXPECT_TRUE(offers_.merge_leaving(kStart));
  EXPECT_FALSE(offers_.merge_leaving(kTooLate));
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(served(3, 1), 1U) << "one bucket was merged in time";
  EXPECT_EQ(served(3, 2), kBuckets);
}

TEST_F(StreamOffersTest, NoLinkLeadsToAWithdrawnVersion) {
  offer_next();
  offer_next();
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_EQ(served(3, 2), kBuckets);
  withdraw(2);
  merge_leaving();
  EXPECT_THAT(offers_.links().bases_of(name(2)), IsEmpty());
  EXPECT_THAT(offers_.links().bases_of(name(3)), ElementsAre(name(1), name(2)));
  withdraw(3);
  EXPECT_FALSE(offers_.merge_leaving(kStart));
  EXPECT_EQ(offers_.links().bytes(), 0U);
}

// A version that comes back, as the target of a rollback, is told of as before.
TEST_F(StreamOffersTest, AVersionThatIsOfferedAgainWhileItLeavesKeepsItsLinks) {
  offer_next();
  offer_next();
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_EQ(served(3, 2), kBuckets);
  withdraw(1);
  withdraw(2);
  EXPECT_TRUE(offers_.merge_leaving(kStart));
  offer(2);
  EXPECT_FALSE(offers_.merge_leaving(kTooLate));
  EXPECT_EQ(served(2, 1), kBuckets);
  EXPECT_EQ(served(3, 1), kBuckets);
}

TEST_F(StreamOffersTest, AnOfferOfAnotherFenceHasNoLinks) {
  offer_next();
  offer_next();
  offer_next(3'000);
  EXPECT_EQ(served(2, 1), kBuckets);
  EXPECT_EQ(served(3, 2), kBuckets);
  withdraw(1);
  // Other bytes under the name of the second version.
  const TestVersion other(2, version(2), 5'000);
  Offer renamed = other.offer();
  renamed.key.fence.epoch += 1;
  offers_.offer(std::move(renamed));
  EXPECT_THAT(offers_.links().bases_of(name(2)), IsEmpty());
  EXPECT_THAT(offers_.links().targets_of(name(2)), IsEmpty());
  EXPECT_EQ(served(3, 1), 0U);
  // The same if the link leads from it, and it was gone for a while.
  offers_.withdraw(name(2), kStart);
  offer(2);
  EXPECT_EQ(served(3, 2), kBuckets);
  offers_.withdraw(name(2), kStart);
  Offer again = other.offer();
  again.key.fence.epoch += 1;
  offers_.offer(std::move(again));
  EXPECT_THAT(offers_.links().targets_of(name(2)), IsEmpty());
}

TEST_F(StreamOffersTest, ACompleteOfferInPlaceOfOneThatArrivesKeepsTheLinks) {
  offer_next();
  const TestVersion& target = next(2'000);
  Offer arriving = target.offer();
  arriving.complete = false;
  offers_.offer(std::move(arriving));
  EXPECT_EQ(served(2, 1), 0U);
  offers_.bucket_ready(name(2), 1, target.digest(1), nullptr);
  EXPECT_EQ(served(2, 1), 1U);
  withdraw(1);
  offer(2);
  EXPECT_EQ(served(2, 1), 1U) << "that of the bucket that had arrived";
}

TEST_F(StreamOffersTest, AnotherLayoutOrCutHasNoLinks) {
  offer_next();
  offer_next();
  EXPECT_EQ(served(2, 1), kBuckets);
  Offer other = next(3'000).offer();
  other.key.layout.low += 1;
  offers_.offer(std::move(other));
  EXPECT_EQ(served(3, 2), 0U);
  EXPECT_EQ(served(3, 1), 0U);
  Offer cut = version(2).offer();
  cut.buckets[2].bytes -= 1;
  offers_.offer(std::move(cut));
  EXPECT_THAT(offers_.links().bases_of(name(2)), IsEmpty());
}

TEST_F(StreamOffersTest, LargerChangesThanWantedAreNotSent) {
  offer_next();
  offer_next();
  const std::uint64_t one = changes(2, 1, 0)->size();
  EXPECT_EQ(changes(2, 1, 0, one - 1), nullptr) << "also if the link is here";
  EXPECT_NE(changes(2, 1, 0, one), nullptr);
  withdraw(1);
  offer_next(3'000);
  EXPECT_EQ(changes(3, 1, 0, one), nullptr);
  EXPECT_NE(changes(3, 1, 0), nullptr);
}

TEST_F(StreamOffersTest, WhatIsKeptIsLimited) {
  const auto most = limits::stream_links_bytes_max(kModelBytes);
  offer_next();
  for (std::uint64_t step = 2; step <= 9; ++step) {
    offer_next(90 + step);
    EXPECT_EQ(served(step, step - 1), kBuckets);
    withdraw(step - 1);
    merge_leaving();
    EXPECT_LE(offers_.links().bytes(), most);
    EXPECT_GT(offers_.links().bytes(), 0U);
  }
  EXPECT_EQ(served(9, 8), kBuckets) << "the newest links stay";
  EXPECT_LT(served(9, 6), kBuckets);
  EXPECT_EQ(served(9, 1), 0U);
}

TEST_F(StreamOffersTest, AMiddleThatIsDamagedIsNotUsed) {
  next(0);
  next(2'000);
  next(3'000);
  offer(1);
  const auto data = std::make_shared<Bytes>(version(2).data().begin(), version(2).data().end());
  Offer middle = version(2).offer();
  middle.data = *data;
  offers_.offer(std::move(middle));
  offer(3);
  EXPECT_EQ(served(2, 1), kBuckets);
  EXPECT_EQ(served(3, 2), kBuckets);
  withdraw(1);
  (*data)[1000] ^= std::byte{0x40};  // the first byte that the second version changes
  test::capture_log();
  EXPECT_EQ(changes(3, 1, 0), nullptr);
  EXPECT_THAT(test::captured_log(),
              HasSubstr("from version 1.1 over 1.2 to 1.3 cannot be told of bucket "
                        "0, which is sent in full to who holds 1.1"));
  EXPECT_NE(changes(3, 1, 1), nullptr);
}

// The second version, as its changes from the first one alone.
void StreamOffersTest::offer_alone() {
  const TestVersion& base = version(1);
  const TestVersion& target = version(2);
  Offer alone = target.offer();
  alone.data = {};
  alone.base = base.key().version;
  offers_.offer(std::move(alone));
  patch::LeafChangesMaker maker;
  for (std::uint64_t i = 0; i < kBuckets; ++i)
    offers_.bucket_ready(
        name(2), i, target.digest(i),
        std::make_shared<const Bytes>(*maker.make(*base.blocks(), base.leaves()->bucket(i),
                                                  base.data(), target.data(), limits::kMiB)));
}

TEST_F(StreamOffersTest, WhatArrivesAsChangesAloneIsKeptIfAnybodyFetchesFromHere) {
  offer_next();
  next(2'000);
  offer_alone();
  EXPECT_EQ(offers_.links().bytes(), 0U);
  EXPECT_EQ(served(2, 1), kBuckets);
  withdraw(2);
  offer_alone();
  EXPECT_GT(offers_.links().bytes(), 0U);
}

TEST_F(StreamOffersTest, AVersionThatIsHeldAsChangesAloneGivesLinks) {
  offer_next();
  EXPECT_EQ(changes(1, 1, 0), nullptr) << "the first version is sent in full";
  next(2'000);
  offer_alone();
  EXPECT_EQ(served(2, 1), kBuckets);
  // The memory of the base becomes that of the target.
  withdraw(1);
  offer(2);
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_EQ(served(3, 1), kBuckets);
}

// ---- a bucket of a version that is held as its changes alone ----

TEST_F(StreamOffersTest, ABucketIsMadeOfTheBaseAndTheChanges) {
  offer_next();
  next(2'000);
  offer_alone();
  for (std::uint64_t bucket = 0; bucket < kBuckets; ++bucket) {
    EXPECT_TRUE(offers_.judge(*offers_.find(name(2)), get(2, 9, bucket, limits::kMiB)));
    const auto made = offers_.compose(*offers_.find(name(2)), bucket);
    ASSERT_TRUE(made.has_value()) << made.error().message();
    EXPECT_TRUE(same_bytes(**made, version(2).bucket(bucket))) << "bucket " << bucket;
  }
}

TEST_F(StreamOffersTest, ABucketIsNotMadeOfADamagedBase) {
  offer_next();
  next(2'000);
  // Not an element that changes.
  Bytes damaged(version(1).data().begin(), version(1).data().end());
  damaged[0] ^= std::byte{1};
  Offer base = version(1).offer();
  base.data = damaged;
  offers_.offer(std::move(base));
  offer_alone();
  const auto made = offers_.compose(*offers_.find(name(2)), 0);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(made.error().message(),
            "of version 1.2 only what changes from 1.1 is here, and bytes of that version that do "
            "not change are damaged: another source has to send bucket 0");
  EXPECT_TRUE(offers_.compose(*offers_.find(name(2)), 1).has_value());
  damaged[0] ^= std::byte{1};
  damaged[1'000] ^= std::byte{1};  // one that changes
  EXPECT_FALSE(offers_.compose(*offers_.find(name(2)), 0).has_value());
}

TEST_F(StreamOffersTest, ABucketIsElsewhereWhenTheBaseIsNotOfferedAnyMore) {
  offer_next();
  next(2'000);
  offer_alone();
  const auto target = offers_.find(name(2));
  withdraw(1);
  const auto judged = offers_.judge(*target, get(2, 9, 0, limits::kMiB));
  ASSERT_FALSE(judged.has_value());
  EXPECT_EQ(judged.error().code(), ErrorCode::kPeerLost);
  const auto made = offers_.compose(*target, 0);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(offers_.judge(*target, get(2, 1, 0, limits::kMiB))) << "the changes are still here";
}

TEST_F(StreamOffersTest, WhoIsTwoBehindGetsWhatChangesOfAVersionThatIsHeldAlone) {
  const TestVersion& first = next(1);
  const TestVersion& second = next(2'000);
  const TestVersion& third = next(3'000);
  offers_.offer(first.offer());
  offers_.offer(second.offer());
  EXPECT_EQ(served(2, 1), kBuckets);
  withdraw(1);
  Offer alone = third.offer();
  alone.data = {};
  alone.base = name(2);
  offers_.offer(std::move(alone));
  for (std::uint64_t i = 0; i < kBuckets; ++i)
    offers_.bucket_ready(name(3), i, third.digest(i),
                         std::make_shared<const Bytes>(*patch::LeafChangesMaker().make(
                             *second.blocks(), second.leaves()->bucket(i), second.data(),
                             third.data(), limits::kMiB)));
  EXPECT_EQ(served(3, 1), kBuckets);
  EXPECT_EQ(served(3, 2), kBuckets);
}

// As a trainer that changes its arena in place: both versions are offered without memory for some
// time, then the newer one with it, and the older one as its changes.
TEST_F(StreamOffersTest, LinksOverAVersionThatLosesItsMemoryAreMergedBefore) {
  offer_next();
  offer_next(2'000);
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_EQ(served(3, 2), kBuckets);
  withdraw(1);
  merge_leaving();
  const auto memory = offer_watched(2);
  offers_.offer(without_memory(2), kStart);
  EXPECT_FALSE(memory.expired()) << "it is held until the links are merged";
  Offer alone = without_memory(2);
  alone.base = name(3);
  offers_.offer(std::move(alone), kStart);
  EXPECT_FALSE(memory.expired());
  merge_leaving();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(served(3, 1), kBuckets);
  EXPECT_EQ(served(3, 2), kBuckets) << "links to what is still offered stay";
}

TEST_F(StreamOffersTest, TheMemoryOfAVersionThatLosesItIsHeldForAShortTime) {
  offer_next();
  offer_next(2'000);
  EXPECT_EQ(served(2, 1), kBuckets);
  offer_next(3'000);
  EXPECT_EQ(served(3, 2), kBuckets);
  const auto memory = offer_watched(2);
  offers_.offer(without_memory(2), kStart);
  EXPECT_FALSE(memory.expired());
  EXPECT_FALSE(offers_.merge_leaving(kTooLate));
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(served(3, 2), kBuckets);
}

TEST_F(StreamOffersTest, WithoutAWithdrawnOrUnknownVersionNothingHappens) {
  EXPECT_FALSE(offers_.withdraw(name(1), kStart));
  offers_.bucket_ready(name(1), 0, {}, nullptr);
  EXPECT_FALSE(offers_.merge_leaving(kStart));
  EXPECT_FALSE(offers_.merge_idle());
  offer_next();
  offer_next();
  EXPECT_EQ(served(2, 1), kBuckets);
  offers_.clear();
  EXPECT_EQ(offers_.find(name(2)), nullptr);
  EXPECT_EQ(offers_.links().bytes(), 0U);
}

// Any order of publishing, serving, withdrawing and merging: what is sent is right, what is kept is
// within the limits, and links lead to what is offered alone.
TEST_F(StreamOffersTest, WhateverHappensWhatIsSentIsRight) {
  std::mt19937_64 random(7);
  std::size_t merged = 0;
  for (int run = 0; run < 6; ++run) {
    offers_.clear();
    versions_.clear();
    offer_next();
    std::vector<std::uint64_t> offered{1};
    for (int i = 0; i < 200 && versions_.size() < 20; ++i) {
      const std::uint64_t some = offered[random() % offered.size()];
      switch (random() % 24) {
        case 0:
          offer_next(700 + random() % 3'000);
          offered.push_back(versions_.size());
          break;
        case 1:
          if (offered.size() < 2) break;
          withdraw(some);
          std::erase(offered, some);
          break;
        case 2:
        case 3:
          (void)offers_.merge_leaving(random() % 4 == 0 ? kTooLate : kStart);
          break;
        case 4:
        case 5:
          (void)offers_.merge_idle();
          break;
        default: {
          // Mostly somebody who is a little behind.
          const std::uint64_t from =
              random() % 4 == 0 || some == 1
                  ? 1 + random() % versions_.size()
                  : some - 1 - random() % std::min<std::uint64_t>(some - 1, 3);
          const bool is_here = offers_.find(name(from)) != nullptr;
          const bool is_sent = changes(some, from, random() % kBuckets) != nullptr;
          EXPECT_TRUE(is_sent || !is_here || from == some);
          merged += is_sent && !is_here ? 1U : 0U;
        }
      }
      EXPECT_LE(offers_.links().bytes(), offers_.links().bytes_max());
    }
    merge_leaving();
    for (std::uint64_t step = 1; step <= versions_.size(); ++step)
      if (offers_.find(name(step)) == nullptr) {
        EXPECT_THAT(offers_.links().bases_of(name(step)), IsEmpty());
      }
  }
  EXPECT_GT(merged, 100U);
}

}  // namespace
}  // namespace wsync::transport
