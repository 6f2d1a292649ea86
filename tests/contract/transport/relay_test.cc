// What every kind that copies can do beside the suite of all kinds: relay chains (source -> first
// sidecar -> second sidecar), and buckets that arrive one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utility>

#include "shared/base/units.h"
#include "tests/contract/transport/relay_fixture.h"

namespace wsync::transport {
namespace {

class Relay : public RelayTest {};

TEST_P(Relay, TwoSidecarsCostTheTrainerOneModel) {
  const TestVersion version(1, 24 * limits::kMiB + 300);
  const std::uint64_t bytes = version.data().size();
  Host trainer(make(), 0);
  Host first(make(), bytes);
  Host second(make(), bytes);
  trainer.source->offer(version.offer());
  first.join_chain(version, trainer.source->address());
  second.join_chain(version, first.source->address());
  ASSERT_TRUE(loop.run_until([&] { return second.receiver.is_over(); }));
  EXPECT_EQ(second.receiver.done, 1) << second.receiver.failure_text();
  EXPECT_TRUE(first.receiver.holds(version));
  EXPECT_TRUE(second.receiver.holds(version));
  const std::uint64_t sent = trainer.source->counters().wire_bytes;
  EXPECT_GE(sent, bytes);
  EXPECT_LE(sent, bytes + bytes / 100);
}

TEST_P(Relay, SecondSidecarGetsBucketsBeforeTheFirstHasAll) {
  const TestVersion version(1);
  Host trainer(make(), 0);
  Host first(make(), version.data().size());
  Host second(make(), version.data().size());
  Offer half = version.offer();
  half.complete = false;
  trainer.source->offer(std::move(half));
  first.join_chain(version, trainer.source->address());
  second.join_chain(version, first.source->address());
  trainer.source->bucket_ready(version.key().version, 3, version.digest(3));
  ASSERT_TRUE(loop.run_until([&] { return !second.receiver.buckets.empty(); }));
  EXPECT_EQ(second.receiver.buckets, std::vector<std::uint64_t>{3});
  EXPECT_FALSE(first.receiver.is_over());
}

// A trainer offers buckets while it takes the snapshot, and then the version with all its sums.
TEST_P(Relay, AnOfferOfBucketsBecomesThatOfTheCompleteVersion) {
  const TestVersion version(1);
  Host trainer(make(), 0);
  Host first(make(), version.data().size());
  Host second(make(), version.data().size());
  Offer part = version.offer();
  part.complete = false;
  part.leaves = nullptr;
  part.sums = {};
  trainer.source->offer(std::move(part));
  first.join_chain(version, trainer.source->address());
  second.join_chain(version, first.source->address());
  trainer.source->bucket_ready(version.key().version, 0, version.digest(0));
  ASSERT_TRUE(loop.run_until([&] { return !second.receiver.buckets.empty(); }));
  trainer.source->offer(version.offer());
  ASSERT_TRUE(loop.run_until([&] { return second.receiver.is_over(); }));
  EXPECT_EQ(second.receiver.done, 1) << second.receiver.failure_text();
  EXPECT_TRUE(first.receiver.holds(version));
  EXPECT_TRUE(second.receiver.holds(version));
}

// Making memory for a large version takes longer than a source waits for an offer.
TEST_P(Relay, WhoAsksBeforeTheFirstSidecarHasMemoryWaitsForIt) {
  const TestVersion version(1);
  const TestVersion unknown(2);
  Host first(make(std::chrono::milliseconds(1)), 0);
  Host second(make(), version.data().size());
  Host third(make(), unknown.data().size());
  Offer offer = version.offer();
  offer.complete = false;
  const std::span<const std::byte> data = std::exchange(offer.data, {});
  first.source->offer(offer);
  const auto ask = [&](Host& host, const TestVersion& wanted) {
    return host.receiver.receive(host.receiver.wanted(wanted, first.source->address()));
  };
  ASSERT_TRUE(ask(second, version).has_value());
  ASSERT_TRUE(ask(third, unknown).has_value());
  ASSERT_TRUE(loop.run_until([&] { return third.receiver.failure.has_value(); }));
  EXPECT_EQ(third.receiver.failure->error.code(), ErrorCode::kNotFound);
  EXPECT_FALSE(second.receiver.is_over()) << second.receiver.failure_text();

  offer.data = data;
  first.source->offer(offer);
  for (std::uint64_t i = 0; i < version.buckets().size(); ++i)
    first.source->bucket_ready(version.key().version, i, version.digest(i));
  ASSERT_TRUE(loop.run_until([&] { return second.receiver.is_over(); }));
  EXPECT_TRUE(second.receiver.holds(version)) << second.receiver.failure_text();
}

TEST_P(Relay, SecondSidecarIsAttachedAgainAtItsFirstMissingBucket) {
  const TestVersion version(1, 16 * limits::kMiB);
  const std::uint64_t bytes = version.data().size();
  constexpr std::uint64_t kBefore = 6;  // buckets that travel before the first sidecar dies
  Host trainer(make(), 0);
  auto first = std::make_unique<Host>(make(), bytes);
  Host second(make(), bytes);
  Offer half = version.offer();
  half.complete = false;
  trainer.source->offer(std::move(half));
  for (std::uint64_t i = 0; i < kBefore; ++i)
    trainer.source->bucket_ready(version.key().version, i, version.digest(i));
  first->join_chain(version, trainer.source->address());
  second.join_chain(version, first->source->address());
  ASSERT_TRUE(loop.run_until([&] { return second.receiver.buckets.size() == kBefore; }));

  first.reset();
  ASSERT_TRUE(loop.run_until([&] { return second.receiver.is_over(); }));
  ASSERT_TRUE(second.receiver.failure.has_value());
  EXPECT_EQ(second.receiver.failure->error.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(second.receiver.failure->first_missing, kBefore);

  const std::uint64_t sent_before = trainer.source->counters().wire_bytes;
  trainer.source->offer(version.offer());
  FetchRequest rest = second.receiver.wanted(version, trainer.source->address());
  rest.have.assign(version.buckets().size(), false);
  for (const std::uint64_t bucket : second.receiver.buckets) rest.have[bucket] = true;
  second.receiver.failure.reset();
  ASSERT_TRUE(second.receiver.receive(std::move(rest)).has_value());
  ASSERT_TRUE(loop.run_until([&] { return second.receiver.is_over(); }));
  EXPECT_EQ(second.receiver.done, 1) << second.receiver.failure_text();
  EXPECT_TRUE(second.receiver.holds(version));
  // Only what was missing went over the wire again.
  const std::uint64_t missing = bytes - kBefore * TestVersion::kBucketBytes;
  const std::uint64_t sent = trainer.source->counters().wire_bytes - sent_before;
  EXPECT_GE(sent, missing);
  EXPECT_LE(sent, missing + bytes / 100);
}

// The source has one bucket of the version, with this digest, and the sink begins to fetch all.
void fetch_first_bucket(Host& trainer, Host& first, const TestVersion& version,
                        const Digest& digest) {
  Offer half = version.offer();
  half.complete = false;
  trainer.source->offer(std::move(half));
  trainer.source->bucket_ready(version.key().version, 0, digest);
  const auto begun =
      first.receiver.receive(first.receiver.wanted(version, trainer.source->address()));
  ASSERT_TRUE(begun.has_value()) << begun.error().message();
}

TEST_P(Relay, ABucketWithAnotherDigestIsRefused) {
  const TestVersion version(1);
  Host trainer(make(), 0);
  Host first(make(), version.data().size());
  fetch_first_bucket(trainer, first, version, version.digest(1));
  ASSERT_TRUE(loop.run_until([&] { return first.receiver.is_over(); }));
  ASSERT_TRUE(first.receiver.failure.has_value());
  EXPECT_EQ(first.receiver.failure->error.code(), ErrorCode::kDigestMismatch);
  EXPECT_TRUE(first.receiver.buckets.empty());
}

TEST_P(Relay, AVersionThatIsWithdrawnMeanwhileGivesItsReasonAndItsMemory) {
  const TestVersion version(1);
  Host trainer(make(), 0);
  Host first(make(), version.data().size());
  fetch_first_bucket(trainer, first, version, version.digest(0));
  ASSERT_TRUE(loop.run_until([&] { return !first.receiver.buckets.empty(); }));
  trainer.source->withdraw(version.key().version, "superseded by another");
  (void)trainer.source->counters();  // has passed the same queue
  EXPECT_TRUE(version.arena().try_write_lease({}).has_value());
  ASSERT_TRUE(loop.run_until([&] { return first.receiver.is_over(); }));
  ASSERT_TRUE(first.receiver.failure.has_value());
  EXPECT_EQ(first.receiver.failure->error.code(), ErrorCode::kCancelled);
  EXPECT_THAT(first.receiver.failure_text(), ::testing::HasSubstr("superseded by another"));
  EXPECT_EQ(first.receiver.failure->first_missing, 1U);
}

TEST_P(Relay, UnwatchEndsATransferAndNothingIsWrittenAfterwards) {
  const TestVersion version(1, 64 * limits::kMiB);
  Host trainer(make(), 0);
  Host first(make(), version.data().size());
  trainer.source->offer(version.offer());
  const auto ask = [&] {
    return first.receiver.receive(first.receiver.wanted(version, trainer.source->address()));
  };
  ASSERT_TRUE(ask().has_value());
  ASSERT_TRUE(loop.run_until([&] { return !first.receiver.buckets.empty(); }));
  first.receiver.sink->unwatch();
  EXPECT_EQ(first.receiver.memory.use_count(), 1) << "the transfer has released the memory";
  const std::size_t reported = first.receiver.buckets.size();
  loop.run_posted();
  EXPECT_EQ(first.receiver.buckets.size(), reported);
  EXPECT_FALSE(first.receiver.is_over()) << first.receiver.failure_text();
  ASSERT_TRUE(ask().has_value());
  ASSERT_TRUE(loop.run_until([&] { return first.receiver.is_over(); }));
  EXPECT_TRUE(first.receiver.holds(version));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Relay, ::testing::ValuesIn(kinds_that_copy()),
                         [](const auto& traits) { return std::string(traits.param.kind); });

}  // namespace
}  // namespace wsync::transport
