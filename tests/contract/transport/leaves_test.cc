// Buckets that are larger than limits::kStreamLeavesBytes travel leaf by leaf, by every kind that
// copies. A chain passes leaves on before their bucket has arrived, and nobody gets one that was
// not proven.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <vector>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/limits.h"
#include "tests/contract/transport/relay_fixture.h"

namespace wsync::transport {
namespace {

using ::testing::HasSubstr;

// The base that a receiver holds, of which it takes the changes alone or not.
FetchBase held(const TestVersion& base) {
  return {.version = base.key().version,
          .data = base.data(),
          .hold = {},
          .blocks = base.blocks(),
          .max_share = 0.3,
          .sums = base.sums()};
}

FetchRequest alone(FetchRequest wanted, const TestVersion& base) {
  wanted.into = {};
  wanted.hold = nullptr;
  wanted.base = held(base);
  return wanted;
}

// Three buckets of eight leaves, and a short one.
class Leaves : public RelayTest {
 protected:
  static constexpr std::uint64_t kBucketBytes = 8 * limits::kMiB;
  static constexpr std::uint64_t kBytes = 3 * kBucketBytes + 300;

  [[nodiscard]] static TestVersion make_version(std::uint64_t step) {
    return {step, kBytes,
            [step](std::span<std::byte> out) {
              std::mt19937_64 random(step);
              fill_random(random, out);
            },
            "wsync-test", kBucketBytes};
  }
  // One byte differs from the version.
  [[nodiscard]] TestVersion almost_the_same(std::uint64_t step) const {
    return {step, kBytes,
            [this](std::span<std::byte> out) {
              std::ranges::copy(version_.data(), out.begin());
              out[0] ^= std::byte{1};
            },
            "wsync-test", kBucketBytes};
  }
  [[nodiscard]] Version name() const { return version_.key().version; }
  [[nodiscard]] Offer incomplete() const {
    Offer offer = version_.offer();
    offer.complete = false;
    return offer;
  }
  // Leaves [first, first + count) of a bucket become ready at a source.
  void ready(Host& host, std::uint64_t bucket, std::size_t first, std::size_t count) const {
    const auto sums = version_.sums(bucket);
    const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(first);
    host.source->leaves_ready(name(),
                              {.bucket = bucket,
                               .first = first,
                               .sums = {begin, begin + static_cast<std::ptrdiff_t>(count)}});
  }
  void all_ready(Host& host) const {
    for (std::uint64_t i = 0; i < version_.buckets().size(); ++i)
      host.source->bucket_summed(name(), i, version_.sums(i));
  }
  // How many leaves a receiver has been told of, apart from complete buckets.
  [[nodiscard]] static std::size_t count(const Host& host) {
    const auto& leaves = host.receiver.leaves;
    return std::accumulate(
        leaves.begin(), leaves.end(), std::size_t{0},
        [](std::size_t sum, const ArrivedLeaves& each) { return sum + each.sums.size(); });
  }
  // The bytes of the first leaves of bucket 0 are those of the version.
  void expect_begin(const Host& host, std::size_t leaves) const {
    const std::uint64_t bytes = leaves * limits::kLeafBytes;
    EXPECT_TRUE(same_bytes(std::span<const std::byte>(*host.receiver.memory).first(bytes),
                           version_.data().first(bytes)));
  }
  void expect_whole(const Host& host) const {
    EXPECT_EQ(host.receiver.done, 1) << host.receiver.failure_text();
    EXPECT_TRUE(host.receiver.holds(version_));
    const auto& sums = version_.sums();
    EXPECT_EQ(host.receiver.received,
              std::accumulate(sums.begin(), sums.end(), WordSum{},
                              [](WordSum all, const WordSum& each) { return all += each; }));
  }

  TestVersion version_ = make_version(1);
  Host trainer_{make(), 0};
  Host first_{make(), kBytes};
  Host second_{make(), kBytes};
};

TEST_P(Leaves, ArePassedOnBeforeTheirBucketHasArrived) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  second_.join_chain(version_, first_.source->address());
  ready(trainer_, 0, 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return count(second_) == 3; }));
  EXPECT_TRUE(first_.receiver.buckets.empty());
  EXPECT_TRUE(second_.receiver.buckets.empty());
  expect_begin(second_, 3);
  ready(trainer_, 0, 3, 2);
  ASSERT_TRUE(loop.run_until([&] { return count(second_) == 5; }));
  all_ready(trainer_);
  ASSERT_TRUE(loop.run_until([&] { return second_.receiver.is_over(); }));
  expect_whole(first_);
  expect_whole(second_);
  EXPECT_EQ(trainer_.source->counters().buckets, version_.buckets().size());
}

TEST_P(Leaves, ACompleteVersionTravelsInRunsOfAtMostOneMebibyte) {
  trainer_.source->offer(version_.offer());
  first_.join_chain(version_, trainer_.source->address());
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  expect_whole(first_);
  // The last run of each bucket is reported with it.
  EXPECT_EQ(first_.receiver.leaves.size(), 3 * (kBucketBytes / limits::kStreamLeavesBytes - 1));
  for (const ArrivedLeaves& each : first_.receiver.leaves)
    EXPECT_EQ(each.sums.size(), limits::kStreamLeavesBytes / limits::kLeafBytes);
  const std::uint64_t sent = trainer_.source->counters().wire_bytes;
  EXPECT_GE(sent, kBytes);
  EXPECT_LE(sent, kBytes + kBytes / 1000);
}

TEST_P(Leaves, DamagedOnesAreRefusedAndNotPassedOn) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  second_.join_chain(version_, first_.source->address());
  ready(trainer_, 0, 0, 2);
  ASSERT_TRUE(loop.run_until([&] { return count(second_) == 2; }));
  // The promised sum belongs to other bytes: what a flipped bit on the way looks like.
  trainer_.source->leaves_ready(name(),
                                {.bucket = 0, .first = 2, .sums = {version_.sums(1).front()}});
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over() || count(second_) > 2; }));
  ASSERT_TRUE(first_.receiver.failure.has_value()) << "damaged leaves were taken";
  EXPECT_EQ(first_.receiver.failure->error.code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(first_.receiver.failure_text(), HasSubstr("leaves of bucket 0 from byte 2097152 on"));
  EXPECT_EQ(count(first_), 2U);
  EXPECT_EQ(count(second_), 2U);
}

// Those behind the source that was lost wait, and need not know of it.
TEST_P(Leaves, AChainGoesOnWhenTheSourceOfItsFirstMemberIsReplaced) {
  auto lost = std::make_unique<Host>(make(), 0);
  lost->source->offer(incomplete());
  first_.join_chain(version_, lost->source->address());
  second_.join_chain(version_, first_.source->address());
  ready(*lost, 0, 0, 3);
  ready(*lost, 1, 0, 1);
  ASSERT_TRUE(loop.run_until([&] { return count(second_) == 4; }));
  lost.reset();
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  EXPECT_EQ(first_.receiver.failure->error.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(first_.receiver.failure->first_missing, 0U);
  first_.receiver.failure.reset();
  trainer_.source->offer(version_.offer());
  first_.fetch(first_.receiver.wanted(version_, trainer_.source->address()));
  ASSERT_TRUE(loop.run_until([&] { return second_.receiver.is_over(); }));
  expect_whole(first_);
  expect_whole(second_);
}

TEST_P(Leaves, AMemberWhoseSourceIsLostGoesOnFromAnother) {
  auto middle = std::make_unique<Host>(make(), kBytes);
  trainer_.source->offer(incomplete());
  middle->join_chain(version_, trainer_.source->address());
  second_.join_chain(version_, middle->source->address());
  ready(trainer_, 0, 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return count(second_) == 3; }));
  middle.reset();
  ASSERT_TRUE(loop.run_until([&] { return second_.receiver.is_over(); }));
  EXPECT_EQ(second_.receiver.failure->error.code(), ErrorCode::kPeerLost);
  second_.receiver.failure.reset();
  all_ready(trainer_);
  second_.fetch(second_.receiver.wanted(version_, trainer_.source->address()));
  ASSERT_TRUE(loop.run_until([&] { return second_.receiver.is_over(); }));
  expect_whole(second_);
}

TEST_P(Leaves, AnOfferThatTakesThePlaceOfAnotherSendsTheRest) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  ready(trainer_, 0, 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 3; }));
  trainer_.source->offer(version_.offer());
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  expect_whole(first_);
}

// The new offer has fewer leaves than have been sent. It waits for those that are missing.
TEST_P(Leaves, AnOfferWithFewerLeavesThanWereSentWaits) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  ready(trainer_, 0, 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 3; }));
  trainer_.source->offer(incomplete());
  ready(trainer_, 0, 0, 2);
  ready(trainer_, 1, 0, 1);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 4; }));
  EXPECT_FALSE(first_.receiver.is_over()) << first_.receiver.failure_text();
  all_ready(trainer_);
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  expect_whole(first_);
}

TEST_P(Leaves, ThatComeOutOfOrderAreIgnored) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  ready(trainer_, 0, 1, 2);
  // Of more leaves than it has, and of a bucket that is none.
  trainer_.source->leaves_ready(name(), {.bucket = 0, .first = 0, .sums = version_.sums()});
  trainer_.source->leaves_ready(name(), {.bucket = 99, .first = 0, .sums = version_.sums(0)});
  ready(trainer_, 1, 0, 1);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 1; }));
  EXPECT_EQ(first_.receiver.leaves.front().bucket, 1U);
  all_ready(trainer_);
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  expect_whole(first_);
}

TEST_P(Leaves, ABucketWhoseSumsItsSourceDoesNotKnowTravelsAsAWhole) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  ready(trainer_, 0, 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 3; }));
  for (std::uint64_t i = 0; i < version_.buckets().size(); ++i)
    trainer_.source->bucket_ready(name(), i, version_.digest(i));
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  expect_whole(first_);
  EXPECT_EQ(count(first_), 3U);
}

TEST_P(Leaves, AVersionThatIsWithdrawnInTheMiddleOfABucketGivesItsReasonAndItsMemory) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  ready(trainer_, 0, 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 3; }));
  trainer_.source->withdraw(name(), "superseded by another");
  (void)trainer_.source->counters();  // has passed the same queue
  EXPECT_TRUE(version_.arena().try_write_lease({}).has_value());
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  ASSERT_TRUE(first_.receiver.failure.has_value());
  EXPECT_EQ(first_.receiver.failure->error.code(), ErrorCode::kCancelled);
  EXPECT_THAT(first_.receiver.failure_text(), HasSubstr("superseded by another"));
}

// Changes are smaller. So a source that has the whole bucket tells them, and sends leaves only if
// it cannot.
TEST_P(Leaves, AreNotSentInPlaceOfChanges) {
  const TestVersion target = almost_the_same(2);
  const auto fetch = [&](Host& host, const Host& source) {
    FetchRequest wanted = host.receiver.wanted(target, source.source->address());
    wanted.base = held(version_);
    host.fetch(std::move(wanted));
    ASSERT_TRUE(loop.run_until([&] { return host.receiver.is_over(); }));
    EXPECT_TRUE(host.receiver.holds(target)) << host.receiver.failure_text();
  };
  trainer_.source->offer(version_.offer());
  Offer half = target.offer();
  half.complete = false;
  trainer_.source->offer(half);
  for (std::uint64_t i = 0; i < target.buckets().size(); ++i)
    trainer_.source->bucket_summed(target.key().version, i, target.sums(i));
  fetch(first_, trainer_);
  EXPECT_EQ(first_.receiver.by_changes, target.buckets().size());
  EXPECT_EQ(count(first_), 0U);
  Host without_base(make(), 0);
  without_base.source->offer(target.offer());
  fetch(second_, without_base);
  EXPECT_EQ(second_.receiver.by_changes, 0U);
  EXPECT_GT(count(second_), 0U);
}

// It need not wait for the whole bucket to learn that.
TEST_P(Leaves, OneThatTakesChangesAloneNeedsMemoryWhenTheFirstAreHere) {
  const TestVersion base = make_version(2);
  trainer_.source->offer(incomplete());
  first_.fetch(alone(first_.receiver.wanted(version_, trainer_.source->address()), base));
  ready(trainer_, 1, 0, 1);
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  ASSERT_TRUE(first_.receiver.failure.has_value());
  EXPECT_TRUE(first_.receiver.failure->needs_memory) << first_.receiver.failure_text();
  EXPECT_EQ(first_.receiver.failure->unlike, Version()) << "the source has not compared them";
  EXPECT_THAT(first_.receiver.failure_text(), HasSubstr("sends bucket 1 in full"));
}

// Otherwise those behind it would wait for the next bucket to learn it, one after the other.
TEST_P(Leaves, ThatTooMuchHasChangedIsPassedOn) {
  const TestVersion base = make_version(2);
  trainer_.source->offer(base.offer());
  trainer_.source->offer(incomplete());
  trainer_.source->bucket_summed(name(), 0, version_.sums(0));
  second_.fetch(alone(second_.receiver.wanted(version_, trainer_.source->address()), base));
  ASSERT_TRUE(loop.run_until([&] { return second_.receiver.is_over(); }));
  EXPECT_TRUE(second_.receiver.failure->needs_memory) << second_.receiver.failure_text();
  EXPECT_EQ(second_.receiver.failure->unlike.to_string(), "1.2") << "nobody learns it";

  FetchRequest with_memory = first_.receiver.wanted(version_, trainer_.source->address());
  with_memory.base = held(base);
  first_.source->offer(base.offer());
  first_.join_chain(version_, std::move(with_memory));
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.buckets.size() == 1; }));
  FetchRequest rest = alone(second_.receiver.wanted(version_, first_.source->address()), base);
  rest.have.assign(version_.buckets().size(), false);
  rest.have[0] = true;
  second_.receiver.failure.reset();
  second_.fetch(std::move(rest));
  ASSERT_TRUE(loop.run_until([&] { return second_.receiver.is_over(); }))
      << "it waits for the next bucket";
  EXPECT_TRUE(second_.receiver.failure->needs_memory) << second_.receiver.failure_text();
  EXPECT_THAT(second_.receiver.failure_text(), HasSubstr("too much has changed from 1.2 to 1.1"));
}

// The source of the relay does not hold the base, and the relay does. So it compares each bucket
// when all of it is here.
TEST_P(Leaves, WaitForTheirBucketIfItCanBeComparedThen) {
  const TestVersion base = almost_the_same(2);
  trainer_.source->offer(incomplete());
  first_.source->offer(base.offer());
  first_.join_chain(version_, trainer_.source->address());
  FetchRequest wanted = second_.receiver.wanted(version_, first_.source->address());
  wanted.base = held(base);
  second_.fetch(std::move(wanted));
  ready(trainer_, 0, 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 3; }));
  all_ready(trainer_);
  ASSERT_TRUE(loop.run_until([&] { return second_.receiver.is_over(); }));
  expect_whole(second_);
  EXPECT_EQ(second_.receiver.by_changes, version_.buckets().size());
  EXPECT_EQ(count(second_), 0U);
}

// Somebody may be reading its leaves, and changes would be applied to a copy of the base there.
TEST_P(Leaves, ABucketOfWhichLeavesWerePassedOnComesInFull) {
  const TestVersion base = almost_the_same(2);
  trainer_.source->offer(base.offer());
  trainer_.source->offer(version_.offer());
  FetchRequest wanted = first_.receiver.wanted(version_, trainer_.source->address());
  wanted.base = held(base);
  wanted.in_full = {false, true, false, false};
  first_.fetch(std::move(wanted));
  ASSERT_TRUE(loop.run_until([&] { return first_.receiver.is_over(); }));
  expect_whole(first_);
  EXPECT_EQ(first_.receiver.by_changes, version_.buckets().size() - 1);
  ASSERT_FALSE(first_.receiver.leaves.empty());
  for (const ArrivedLeaves& each : first_.receiver.leaves) EXPECT_EQ(each.bucket, 1U);
}

TEST_P(Leaves, NothingIsToldOfThemAfterCancel) {
  trainer_.source->offer(incomplete());
  first_.join_chain(version_, trainer_.source->address());
  ready(trainer_, 0, 0, 2);
  ASSERT_TRUE(loop.run_until([&] { return count(first_) == 2; }));
  ready(trainer_, 0, 2, 2);
  first_.receiver.sink->cancel();
  loop.run_posted();
  EXPECT_EQ(count(first_), 2U);
  EXPECT_EQ(first_.receiver.memory.use_count(), 2) << "only the offer holds it";
}

INSTANTIATE_TEST_SUITE_P(Kinds, Leaves, ::testing::ValuesIn(kinds_that_copy()),
                         [](const auto& traits) { return std::string(traits.param.kind); });

}  // namespace
}  // namespace wsync::transport
