// What every kind that copies does for a receiver that fetches a version as its changes alone, and
// for a source that holds one so: nothing is written, everything is proven, and what cannot come so
// is told apart from a lost source.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <utility>

#include "shared/transport/make_transport.h"
#include "shared/weights/patch/leaf_changes.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/private_directory.h"

namespace wsync::transport {
namespace {

using ::testing::HasSubstr;

class ChangesAlone : public ::testing::TestWithParam<TransportTraits> {
 protected:
  // A process that holds the base, and what it has of the target.
  struct Side {
    Side(std::unique_ptr<Transport> made, std::uint64_t bytes)
        : transport(std::move(made)),
          source(transport->listen().value()),
          receiver(transport->make_sink({}).value(), bytes) {
      receiver.on_arrived = [this](const ArrivedBucket& bucket) {
        arrived.insert_or_assign(bucket.bucket, bucket);
      };
    }
    std::unique_ptr<Transport> transport;
    std::unique_ptr<BucketSource> source;
    Receiver receiver;
    std::map<std::uint64_t, ArrivedBucket> arrived;
  };
  [[nodiscard]] std::unique_ptr<Side> make_side() {
    return std::make_unique<Side>(make_transport(GetParam().kind, loop_.post(),
                                                 {.run_dir = directory_.path().string(),
                                                  .name = "side" + std::to_string(++made_),
                                                  .secret = kTestSecret})
                                      .value(),
                                  base_.data().size());
  }
  // The copy of the base that receivers hold.
  [[nodiscard]] FetchBase held_base() const {
    return {.version = base_.key().version,
            .data = *held_,
            .hold = held_,
            .blocks = base_.blocks(),
            .max_share = 0.4,
            .sums = *held_sums_};
  }
  [[nodiscard]] FetchRequest alone(const Side& to, const std::string& source) const {
    FetchRequest request = to.receiver.wanted(target_, source);
    request.into = {};
    request.hold = nullptr;
    request.base = held_base();
    return request;
  }
  void run(Side& to, FetchRequest request) {
    to.receiver.failure.reset();
    const auto begun = to.receiver.receive(std::move(request));
    ASSERT_TRUE(begun.has_value()) << begun.error().message();
    ASSERT_TRUE(loop_.run_until([&] { return to.receiver.is_over(); }));
  }
  // The transfer has ended, because the version cannot come so.
  void expect_needs_memory(const Side& to, const std::string& says) {
    ASSERT_TRUE(to.receiver.failure.has_value());
    EXPECT_TRUE(to.receiver.failure->needs_memory);
    EXPECT_EQ(to.receiver.failure->error.code(), ErrorCode::kRefused);
    EXPECT_THAT(to.receiver.failure_text(), HasSubstr("cannot come as changes alone: "));
    EXPECT_THAT(to.receiver.failure_text(), HasSubstr(says));
    expect_nothing_written(to);
  }
  void expect_peer_lost(const Side& to, const std::string& says) {
    ASSERT_TRUE(to.receiver.failure.has_value());
    EXPECT_FALSE(to.receiver.failure->needs_memory);
    EXPECT_EQ(to.receiver.failure->error.code(), ErrorCode::kPeerLost)
        << to.receiver.failure_text();
    EXPECT_THAT(to.receiver.failure_text(),
                HasSubstr("only what changes from " + base_.key().version.to_string()));
    EXPECT_THAT(to.receiver.failure_text(), HasSubstr(says));
  }
  void expect_nothing_written(const Side& to) {
    EXPECT_TRUE(std::ranges::all_of(*to.receiver.memory,
                                    [](std::byte byte) { return byte == std::byte{0}; }));
  }
  // All buckets have come as changes, which make the target of the base.
  void expect_changes_to_target(const Side& to) {
    EXPECT_EQ(to.receiver.done, 1) << to.receiver.failure_text();
    expect_nothing_written(to);
    ASSERT_EQ(to.arrived.size(), target_.buckets().size());
    Bytes data(base_.data().begin(), base_.data().end());
    for (const auto& [bucket, arrived] : to.arrived) {
      const auto leaves = target_.leaves()->bucket(bucket);
      EXPECT_THAT(
          arrived.sums,
          ::testing::ElementsAreArray(
              std::span(target_.sums()).subspan(target_.leaves()->first(bucket), leaves.size())));
      ASSERT_NE(arrived.changes, nullptr);
      EXPECT_EQ(arrived.payload_bytes, arrived.changes->size());
      const auto blocks = patch::read_leaf_changes(*base_.blocks(), leaves, *arrived.changes);
      ASSERT_TRUE(blocks.has_value()) << blocks.error().message();
      ASSERT_TRUE(patch::exchange_leaf_changes(*base_.blocks(), leaves, *blocks, data));
    }
    EXPECT_TRUE(same_bytes(data, target_.data()));
  }
  // An offer of the target as its changes alone.
  [[nodiscard]] Offer held_alone() const {
    return {.key = target_.key(),
            .buckets = target_.buckets(),
            .data = {},
            .base = base_.key().version,
            .leaves = target_.leaves(),
            .blocks = target_.blocks(),
            .hold = nullptr};
  }
  // `side` serves each bucket that it gets, as changes alone, as soon as it is there.
  void relay(Side& side) {
    side.source->offer(held_alone());
    side.receiver.on_arrived = [&](const ArrivedBucket& bucket) {
      side.arrived.insert_or_assign(bucket.bucket, bucket);
      side.source->bucket_ready(target_.key().version, bucket.bucket, bucket.digest,
                                bucket.changes);
    };
  }
  [[nodiscard]] Bytes changes_of(std::uint64_t bucket) {
    return patch::LeafChangesMaker()
        .make(*base_.blocks(), base_.leaves()->bucket(bucket), base_.data(), target_.data(),
              ~std::uint64_t{0})
        .value();
  }
  // A side that holds all of the target as its changes alone.
  [[nodiscard]] std::unique_ptr<Side> make_holder() {
    auto holder = make_side();
    holder->source->offer(held_alone());
    for (std::uint64_t i = 0; i < target_.buckets().size(); ++i)
      holder->source->bucket_ready(target_.key().version, i, target_.digest(i),
                                   std::make_shared<const Bytes>(changes_of(i)));
    return holder;
  }
  void offer_both(Side& trainer) {
    trainer.source->offer(base_.offer());
    trainer.source->offer(target_.offer());
  }

  OwnerLoop loop_;
  PrivateDirectory directory_{"wsync_changes_alone"};
  int made_ = 0;
  TestVersion base_{1};
  TestVersion target_{2, base_, 2'000};
  std::shared_ptr<std::vector<std::byte>> held_ =
      std::make_shared<std::vector<std::byte>>(base_.data().begin(), base_.data().end());
  std::shared_ptr<std::vector<WordSum>> held_sums_ =
      std::make_shared<std::vector<WordSum>>(base_.sums());
  std::unique_ptr<Side> trainer_ = make_side();
  std::unique_ptr<Side> to_ = make_side();
};

TEST_P(ChangesAlone, ArriveProvenAndNothingIsWritten) {
  offer_both(*trainer_);
  run(*to_, alone(*to_, trainer_->source->address()));
  expect_changes_to_target(*to_);
  EXPECT_TRUE(same_bytes(*held_, base_.data()));
  EXPECT_LT(to_->receiver.payload_bytes, target_.data().size() / 100);
}

TEST_P(ChangesAlone, AreRelayedAsTheyAreWhileTheyArrive) {
  const auto second = make_side();
  const std::uint64_t count = target_.buckets().size();
  trainer_->source->offer(base_.offer());
  Offer part = target_.offer();
  part.complete = false;
  trainer_->source->offer(std::move(part));
  relay(*to_);
  ASSERT_TRUE(to_->receiver.receive(alone(*to_, trainer_->source->address())).has_value());
  ASSERT_TRUE(second->receiver.receive(alone(*second, to_->source->address())).has_value());
  trainer_->source->bucket_ready(target_.key().version, 3, target_.digest(3));
  ASSERT_TRUE(loop_.run_until([&] { return second->arrived.contains(3); }));
  EXPECT_FALSE(to_->receiver.is_over());
  for (std::uint64_t i = 0; i < count; ++i)
    trainer_->source->bucket_ready(target_.key().version, i, target_.digest(i));
  ASSERT_TRUE(loop_.run_until([&] { return second->receiver.is_over(); }));
  expect_changes_to_target(*to_);
  expect_changes_to_target(*second);
  for (std::uint64_t i = 0; i < count; ++i)
    EXPECT_EQ(*second->arrived.at(i).changes, *to_->arrived.at(i).changes) << "bucket " << i;
  EXPECT_EQ(trainer_->source->counters().buckets, count) << "the second one asks the first one";
  EXPECT_EQ(to_->source->counters().changes, count);
}

TEST_P(ChangesAlone, OneWithoutTheBaseIsSentToAnotherSource) {
  offer_both(*trainer_);
  const auto holder = make_holder();
  run(*to_, to_->receiver.wanted(target_, holder->source->address()));
  expect_peer_lost(*to_, "no base was named: another source has to send bucket");
  EXPECT_EQ(to_->receiver.failure->first_missing, 0U);
  EXPECT_GT(holder->source->counters().refused, 0U);
  run(*to_, to_->receiver.wanted(target_, trainer_->source->address()));
  EXPECT_EQ(to_->receiver.done, 1) << to_->receiver.failure_text();
  EXPECT_TRUE(to_->receiver.holds(target_));
}

TEST_P(ChangesAlone, OneWithAnotherBaseIsSentToAnotherSource) {
  const auto holder = make_holder();
  FetchRequest other = alone(*to_, holder->source->address());
  other.base->version.step += 40;
  const std::string named = other.base->version.to_string();
  run(*to_, std::move(other));
  expect_peer_lost(*to_, named + " was named as the base");
  EXPECT_TRUE(to_->arrived.empty());
}

// The source makes the buckets of the base that it offers as well.
TEST_P(ChangesAlone, OneWithoutTheBaseGetsTheBucketsFromASourceThatOffersIt) {
  const auto holder = make_holder();
  holder->source->offer(base_.offer());
  run(*to_, to_->receiver.wanted(target_, holder->source->address()));
  EXPECT_EQ(to_->receiver.done, 1) << to_->receiver.failure_text();
  EXPECT_TRUE(to_->receiver.holds(target_));
  EXPECT_EQ(to_->receiver.by_changes, 0U);
  EXPECT_EQ(holder->source->counters().refused, 0U);
}

TEST_P(ChangesAlone, OneThatWantsFewerBytesGetsTheBucketsFromASourceThatOffersTheBase) {
  const auto holder = make_holder();
  holder->source->offer(base_.offer());
  FetchRequest strict = to_->receiver.wanted(target_, holder->source->address());
  strict.base = held_base();
  strict.base->max_share = 0.0001;
  run(*to_, std::move(strict));
  EXPECT_TRUE(to_->receiver.holds(target_)) << to_->receiver.failure_text();
  EXPECT_EQ(to_->receiver.by_changes, 0U);
}

TEST_P(ChangesAlone, ABucketThatHasNotArrivedIsMadeWhenItHas) {
  trainer_->source->offer(base_.offer());
  trainer_->source->offer(held_alone());
  ASSERT_TRUE(to_->receiver.receive(to_->receiver.wanted(target_, trainer_->source->address()))
                  .has_value());
  trainer_->source->bucket_ready(target_.key().version, 3, target_.digest(3),
                                 std::make_shared<const Bytes>(changes_of(3)));
  ASSERT_TRUE(loop_.run_until([&] { return to_->arrived.contains(3); }));
  EXPECT_EQ(to_->arrived.size(), 1U);
  for (std::uint64_t i = 0; i < target_.buckets().size(); ++i)
    trainer_->source->bucket_ready(target_.key().version, i, target_.digest(i),
                                   std::make_shared<const Bytes>(changes_of(i)));
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  EXPECT_TRUE(to_->receiver.holds(target_)) << to_->receiver.failure_text();
}

TEST_P(ChangesAlone, ADamagedBucketIsNotMade) {
  auto damaged = std::make_shared<Bytes>(base_.data().begin(), base_.data().end());
  (*damaged)[base_.buckets()[2].offset] ^= std::byte{1};  // it does not change
  Offer base = base_.offer();
  base.data = *damaged;
  base.hold = damaged;
  const auto holder = make_holder();
  holder->source->offer(std::move(base));
  run(*to_, to_->receiver.wanted(target_, holder->source->address()));
  expect_peer_lost(*to_, "do not change are damaged: another source has to send bucket 2");
  EXPECT_FALSE(to_->arrived.contains(2));
  offer_both(*trainer_);
  run(*to_, to_->receiver.wanted(target_, trainer_->source->address()));
  EXPECT_TRUE(to_->receiver.holds(target_)) << to_->receiver.failure_text();
}

// It is told at once, although the bucket has not arrived.
TEST_P(ChangesAlone, OneWithoutTheBaseDoesNotWait) {
  trainer_->source->offer(held_alone());
  run(*to_, to_->receiver.wanted(target_, trainer_->source->address()));
  expect_peer_lost(*to_, "no base was named");
}

TEST_P(ChangesAlone, LargerOnesThanWantedAreNotSent) {
  const auto holder = make_holder();
  FetchRequest strict = to_->receiver.wanted(target_, holder->source->address());
  strict.base = held_base();
  strict.base->max_share = 0.0001;
  run(*to_, std::move(strict));
  expect_peer_lost(*to_, "bytes, where at most 104 are wanted");
}

TEST_P(ChangesAlone, AReceiverWithMemoryGetsThemFromOneThatHoldsThemAlone) {
  const auto holder = make_holder();
  FetchRequest request = to_->receiver.wanted(target_, holder->source->address());
  request.base = held_base();
  run(*to_, std::move(request));
  EXPECT_EQ(to_->receiver.done, 1) << to_->receiver.failure_text();
  EXPECT_TRUE(to_->receiver.holds(target_));
  EXPECT_EQ(to_->receiver.by_changes, target_.buckets().size());
}

TEST_P(ChangesAlone, ABucketWithoutItsChangesIsElsewhere) {
  trainer_->source->offer(held_alone());
  trainer_->source->bucket_ready(target_.key().version, 0, target_.digest(0));
  run(*to_, alone(*to_, trainer_->source->address()));
  expect_peer_lost(*to_, "not of this bucket");
}

TEST_P(ChangesAlone, AFullBucketNeedsMemory) {
  trainer_->source->offer(target_.offer());
  run(*to_, alone(*to_, trainer_->source->address()));
  expect_needs_memory(*to_, "in full");
  EXPECT_TRUE(to_->arrived.empty());
  run(*to_, to_->receiver.wanted(target_, trainer_->source->address()));
  EXPECT_TRUE(to_->receiver.holds(target_)) << to_->receiver.failure_text();
}

// Nothing has arrived there yet, and may not for a long time.
TEST_P(ChangesAlone, AVersionThatIsKnownToHaveChangedTooMuchNeedsMemoryAtOnce) {
  Offer offer = target_.offer();
  offer.complete = false;
  offer.unlike = base_.key().version;
  const std::span<const std::byte> data = std::exchange(offer.data, {});
  trainer_->source->offer(offer);
  run(*to_, alone(*to_, trainer_->source->address()));
  expect_needs_memory(*to_, "too much has changed from 1.1 to 1.2");
  EXPECT_EQ(to_->receiver.failure->unlike, base_.key().version);
  // Whoever has memory waits for it.
  to_->receiver.failure.reset();
  ASSERT_TRUE(to_->receiver.receive(to_->receiver.wanted(target_, trainer_->source->address())));
  offer.data = data;
  trainer_->source->offer(offer);
  for (std::uint64_t i = 0; i < target_.buckets().size(); ++i)
    trainer_->source->bucket_summed(target_.key().version, i, target_.sums(i));
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  EXPECT_TRUE(to_->receiver.holds(target_)) << to_->receiver.failure_text();
  // What has arrived can be compared.
  trainer_->source->offer(base_.offer());
  const auto late = make_side();
  late->receiver.on_arrived = [&](const ArrivedBucket& bucket) {
    late->arrived.insert_or_assign(bucket.bucket, bucket);
  };
  run(*late, alone(*late, trainer_->source->address()));
  expect_changes_to_target(*late);
}

TEST_P(ChangesAlone, OneFullBucketAmongChangesNeedsMemory) {
  Offer arriving = base_.offer();
  arriving.complete = false;
  trainer_->source->offer(std::move(arriving));
  for (std::uint64_t i = 0; i + 1 < base_.buckets().size(); ++i)
    trainer_->source->bucket_ready(base_.key().version, i, base_.digest(i));
  trainer_->source->offer(target_.offer());
  run(*to_, alone(*to_, trainer_->source->address()));
  expect_needs_memory(*to_, "in full");
  EXPECT_FALSE(to_->arrived.contains(base_.buckets().size() - 1));
}

TEST_P(ChangesAlone, ADamagedBaseNeedsMemory) {
  offer_both(*trainer_);
  const std::uint64_t bucket = 5;
  const auto ours = base_.bucket(bucket);
  const auto at = std::ranges::mismatch(ours, target_.bucket(bucket)).in1 - ours.begin();
  (*held_)[base_.buckets()[bucket].offset + static_cast<std::size_t>(at)] ^= std::byte{0x40};
  run(*to_, alone(*to_, trainer_->source->address()));
  expect_needs_memory(*to_, "the base is another one");
  EXPECT_FALSE(to_->arrived.contains(bucket));
  EXPECT_EQ(to_->receiver.done, 0);
}

// Each block fits, but the bytes between them are not those of the source.
TEST_P(ChangesAlone, AnotherBaseInAWordThatStaysNeedsMemory) {
  offer_both(*trainer_);
  const std::size_t leaf = base_.leaves()->first(5);
  (*held_)[base_.buckets()[5].offset] ^= std::byte{0x40};
  const LeafPlace& place = base_.leaves()->all()[leaf];
  (*held_sums_)[leaf] =
      word_sum(std::span(*held_).subspan(place.arena_offset, place.bytes), place.place);
  run(*to_, alone(*to_, trainer_->source->address()));
  expect_needs_memory(*to_, "its source says");
  EXPECT_FALSE(to_->arrived.contains(5));
}

TEST_P(ChangesAlone, DamagedOnesNeedMemory) {
  const auto holder = make_holder();
  Bytes damaged = changes_of(5);
  damaged.back() ^= std::byte{1};
  holder->source->bucket_ready(target_.key().version, 5, target_.digest(5),
                               std::make_shared<const Bytes>(damaged));
  run(*to_, alone(*to_, holder->source->address()));
  expect_needs_memory(*to_, "the patch is damaged");
  damaged.resize(5);
  holder->source->bucket_ready(target_.key().version, 5, target_.digest(5),
                               std::make_shared<const Bytes>(damaged));
  run(*to_, alone(*to_, holder->source->address()));
  expect_needs_memory(*to_, "they begin with 8 bytes, found 5");
  EXPECT_FALSE(to_->arrived.contains(5));
}

TEST_P(ChangesAlone, ATransferGoesOnFromAnotherSource) {
  const auto lost = make_side();
  lost->source->offer(held_alone());
  for (const std::uint64_t i : {0U, 2U})
    lost->source->bucket_ready(target_.key().version, i, target_.digest(i),
                               std::make_shared<const Bytes>(changes_of(i)));
  ASSERT_TRUE(to_->receiver.receive(alone(*to_, lost->source->address())).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return to_->arrived.size() == 2; }));
  lost->source.reset();
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  ASSERT_TRUE(to_->receiver.failure.has_value());
  EXPECT_FALSE(to_->receiver.failure->needs_memory);
  EXPECT_EQ(to_->receiver.failure->first_missing, 1U);
  offer_both(*trainer_);
  FetchRequest rest = alone(*to_, trainer_->source->address());
  rest.have = std::vector<bool>(target_.buckets().size(), false);
  rest.have[0] = rest.have[2] = true;
  run(*to_, std::move(rest));
  expect_changes_to_target(*to_);
  EXPECT_EQ(trainer_->source->counters().buckets, target_.buckets().size() - 2);
}

TEST_P(ChangesAlone, AnOfferWithDataTakesTheirPlace) {
  const auto holder = make_holder();
  Offer made = target_.offer();
  holder->source->offer(std::move(made));
  run(*to_, to_->receiver.wanted(target_, holder->source->address()));
  EXPECT_TRUE(to_->receiver.holds(target_)) << to_->receiver.failure_text();
}

// What is offered early has no memory yet, and requests for it wait.
TEST_P(ChangesAlone, TakeThePlaceOfAnEarlyOffer) {
  Offer early = held_alone();
  early.base = {};
  early.complete = false;
  trainer_->source->offer(std::move(early));
  trainer_->source->bucket_ready(target_.key().version, 0, target_.digest(0));
  ASSERT_TRUE(to_->receiver.receive(alone(*to_, trainer_->source->address())).has_value());
  trainer_->source->offer(held_alone());
  for (std::uint64_t i = 0; i < target_.buckets().size(); ++i)
    trainer_->source->bucket_ready(target_.key().version, i, target_.digest(i),
                                   std::make_shared<const Bytes>(changes_of(i)));
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  expect_changes_to_target(*to_);
}

// The source has no bytes of a version that it holds as changes alone, so it can compare none.
TEST_P(ChangesAlone, AVersionThatIsHeldSoIsNoBaseAtTheSource) {
  const TestVersion next(3, target_, 2'000);
  const auto holder = make_holder();
  holder->source->offer(next.offer());
  *held_ = std::vector(target_.data().begin(), target_.data().end());
  FetchRequest request = to_->receiver.wanted(next, holder->source->address());
  request.base = held_base();
  request.base->version = target_.key().version;
  run(*to_, std::move(request));
  EXPECT_TRUE(to_->receiver.holds(next)) << to_->receiver.failure_text();
  EXPECT_EQ(to_->receiver.by_changes, 0U);
}

TEST_P(ChangesAlone, NothingIsToldAfterCancel) {
  trainer_->source->offer(held_alone());
  trainer_->source->bucket_ready(target_.key().version, 0, target_.digest(0),
                                 std::make_shared<const Bytes>(changes_of(0)));
  ASSERT_TRUE(to_->receiver.receive(alone(*to_, trainer_->source->address())).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return !to_->arrived.empty(); }));
  to_->receiver.sink->cancel();
  EXPECT_EQ(held_.use_count(), 1) << "the base is not held any more";
  const auto other = make_side();
  offer_both(*other);
  run(*other, alone(*other, other->source->address()));
  EXPECT_EQ(to_->arrived.size(), 1U);
  EXPECT_FALSE(to_->receiver.is_over());
}

TEST_P(ChangesAlone, ARequestWithNeitherMemoryNorABaseIsRefused) {
  const auto refused = [&](const std::function<void(FetchRequest&)>& spoil,
                           const std::string& says) {
    FetchRequest request = alone(*to_, trainer_->source->address());
    spoil(request);
    const auto begun = to_->receiver.receive(std::move(request));
    ASSERT_FALSE(begun.has_value());
    EXPECT_EQ(begun.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(begun.error().message(), HasSubstr(says));
  };
  refused([](FetchRequest& request) { request.base.reset(); }, "or the sums of a base");
  refused([](FetchRequest& request) { request.base->sums = {}; }, "or the sums of a base");
  refused([](FetchRequest& request) { request.base->sums = request.base->sums.subspan(1); },
          "the sums of 8 leaves");
  refused([](FetchRequest& request) { request.base->data = request.base->data.subspan(1); },
          "has 8388907 bytes");
  refused([](FetchRequest& request) { request.base->blocks = nullptr; }, "the base");
  refused([&](FetchRequest& request) { request.into = std::span(*to_->receiver.memory).first(5); },
          "the staging arena has 5 bytes");
}

INSTANTIATE_TEST_SUITE_P(Kinds, ChangesAlone, ::testing::ValuesIn(kinds_that_copy()),
                         [](const auto& kind) { return std::string(kind.param.kind); });

}  // namespace
}  // namespace wsync::transport
