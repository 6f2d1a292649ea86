// The relay chain: source -> first sidecar -> second sidecar, over TCP on loopback.
#include <gtest/gtest.h>
#include <utility>

#include "shared/base/units.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"
#include "tests/contract/transport/stream_fixture.h"

namespace wsync::transport {
namespace {

// One process's data side: its bulk thread, what it serves and what it receives.
struct Host {
  Host(OwnerLoop& loop, std::uint64_t bytes)
      : thread(std::move(*tcp::UvThread::start())),
        source(std::move(*tcp::TcpSource::listen(*thread))),
        receiver(std::make_unique<tcp::TcpSink>(*thread, loop.post()), bytes) {}

  // Begins to receive, and serves each bucket as soon as it is there.
  void join_chain(const TestVersion& version, const std::string& predecessor) {
    source->offer({.key = version.key(),
                   .buckets = version.buckets(),
                   .data = *receiver.memory,
                   .complete = false,
                   .hold = receiver.memory});
    receiver.relay = [this, &version](std::uint64_t bucket, const Digest& digest) {
      source->bucket_ready(version.key().version, bucket, digest);
    };
    const auto begun = receiver.receive(receiver.wanted(version, predecessor));
    EXPECT_TRUE(begun.has_value()) << begun.error().message();
  }

  std::unique_ptr<tcp::UvThread> thread;
  std::unique_ptr<tcp::TcpSource> source;
  Receiver receiver;
};

TEST(Relay, TwoSidecarsCostTheTrainerOneModel) {
  OwnerLoop loop;
  const TestVersion version(1, 24 * limits::kMiB + 300);
  const std::uint64_t bytes = version.data().size();
  Host trainer(loop, 0);
  Host first(loop, bytes);
  Host second(loop, bytes);
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

TEST(Relay, SecondSidecarGetsBucketsBeforeTheFirstHasAll) {
  OwnerLoop loop;
  const TestVersion version(1);
  Host trainer(loop, 0);
  Host first(loop, version.data().size());
  Host second(loop, version.data().size());
  Offer half = version.offer();
  half.complete = false;
  trainer.source->offer(std::move(half));
  first.join_chain(version, trainer.source->address());
  second.join_chain(version, first.source->address());
  trainer.source->bucket_ready(version.key().version, 3, digest_of(version.bucket(3)));
  ASSERT_TRUE(loop.run_until([&] { return !second.receiver.buckets.empty(); }));
  EXPECT_EQ(second.receiver.buckets, std::vector<std::uint64_t>{3});
  EXPECT_FALSE(first.receiver.is_over());
}

// Making memory for a large version takes longer than a source waits for an offer.
TEST(Relay, WhoAsksBeforeTheFirstSidecarHasMemoryWaitsForIt) {
  OwnerLoop loop;
  const TestVersion version(1);
  const TestVersion unknown(2);
  Host first(loop, 0);
  first.source = std::move(
      *tcp::TcpSource::listen(*first.thread, {.offer_wait = std::chrono::milliseconds(1)}));
  Host second(loop, version.data().size());
  Host third(loop, unknown.data().size());
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
    first.source->bucket_ready(version.key().version, i, digest_of(version.bucket(i)));
  ASSERT_TRUE(loop.run_until([&] { return second.receiver.is_over(); }));
  EXPECT_TRUE(second.receiver.holds(version)) << second.receiver.failure_text();
}

TEST(Relay, SecondSidecarIsAttachedAgainAtItsFirstMissingBucket) {
  OwnerLoop loop;
  const TestVersion version(1, 16 * limits::kMiB);
  const std::uint64_t bytes = version.data().size();
  constexpr std::uint64_t kBefore = 6;  // buckets that travel before the first sidecar dies
  Host trainer(loop, 0);
  auto first = std::make_unique<Host>(loop, bytes);
  Host second(loop, bytes);
  Offer half = version.offer();
  half.complete = false;
  trainer.source->offer(std::move(half));
  for (std::uint64_t i = 0; i < kBefore; ++i)
    trainer.source->bucket_ready(version.key().version, i, digest_of(version.bucket(i)));
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

}  // namespace
}  // namespace wsync::transport
