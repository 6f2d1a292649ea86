// One suite over every backend of shared/transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "shared/transport/make_transport.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/private_directory.h"

namespace wsync::transport {
namespace {

constexpr std::chrono::milliseconds kShort{700};  // a deadline that a test waits for

class Stream : public ::testing::TestWithParam<TransportTraits> {
 protected:
  OwnerLoop loop_;
  PrivateDirectory directory_{"wsync_stream"};
  std::unique_ptr<Transport> transport_ = make("trainer");
  TestVersion version_{1};
  std::unique_ptr<BucketSource> source_ = transport_->listen().value();
  Receiver receiver_{sink(), version_.data().size()};

  [[nodiscard]] std::unique_ptr<Transport> make(const std::string& name) {
    return make_transport(GetParam().kind, loop_.post(),
                          {.run_dir = directory_.path().string(),
                           .name = name,
                           .secret = kTestSecret,
                           .offer_wait = kShort})
        .value();
  }
  [[nodiscard]] std::unique_ptr<BucketSink> sink() { return transport_->make_sink({}).value(); }

  [[nodiscard]] bool finished() {
    return loop_.run_until([&] { return receiver_.is_over(); });
  }
  [[nodiscard]] FetchRequest wanted() const {
    return receiver_.wanted(version_, source_->address());
  }
};

TEST_P(Stream, EveryByteArrivesAndEachBucketIsReportedOnce) {
  source_->offer(version_.offer());
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(finished());
  EXPECT_EQ(receiver_.done, 1) << receiver_.failure_text();
  EXPECT_TRUE(receiver_.holds(version_));
  std::vector<std::uint64_t> all(version_.buckets().size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_THAT(receiver_.buckets, ::testing::UnorderedElementsAreArray(all));
  if (GetParam().maps_source) return;
  WordSum sum;
  for (const WordSum& leaf : version_.sums()) sum += leaf;
  EXPECT_EQ(receiver_.received, sum) << "what arrives is summed on the way";
}

TEST_P(Stream, VersionThatIsOfferedLaterIsWaitedFor) {
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  source_->offer(version_.offer());
  ASSERT_TRUE(finished());
  EXPECT_EQ(receiver_.done, 1) << receiver_.failure_text();
}

TEST_P(Stream, SeveralSinksTakeTheSameVersion) {
  source_->offer(version_.offer());
  Receiver other(sink(), version_.data().size());
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(other.receive(other.wanted(version_, source_->address())).has_value());
  ASSERT_TRUE(finished());
  ASSERT_TRUE(loop_.run_until([&] { return other.is_over(); }));
  EXPECT_TRUE(receiver_.holds(version_));
  EXPECT_TRUE(other.holds(version_));
}

TEST_P(Stream, OneSinkTakesOneVersionAfterTheOther) {
  const TestVersion second(2);
  source_->offer(version_.offer());
  source_->offer(second.offer());
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  EXPECT_EQ(receiver_.receive(wanted()).error().code(), ErrorCode::kBusy);
  ASSERT_TRUE(finished());
  receiver_.done = 0;
  ASSERT_TRUE(receiver_.receive(receiver_.wanted(second, source_->address())).has_value());
  ASSERT_TRUE(finished());
  EXPECT_TRUE(receiver_.holds(second));
}

TEST_P(Stream, UnknownVersionIsRefusedWithItsName) {
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(finished());
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kNotFound);
  EXPECT_THAT(receiver_.failure_text(), ::testing::HasSubstr("version 1.1 is not offered here"));
  EXPECT_EQ(receiver_.failure->first_missing, 0U);
}

TEST_P(Stream, LowerFenceIsRefused) {
  source_->offer(version_.offer());
  FetchRequest old = wanted();
  old.key.fence.epoch -= 1;
  ASSERT_TRUE(receiver_.receive(std::move(old)).has_value());
  ASSERT_TRUE(finished());
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kFenced);
  EXPECT_TRUE(receiver_.buckets.empty());
}

TEST_P(Stream, AnotherLayoutIsRefused) {
  source_->offer(version_.offer());
  FetchRequest other = wanted();
  other.key.layout.low += 1;
  ASSERT_TRUE(receiver_.receive(std::move(other)).has_value());
  ASSERT_TRUE(finished());
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kRefused);
  EXPECT_THAT(receiver_.failure_text(), ::testing::HasSubstr("layout"));
}

TEST_P(Stream, SourceThatGoesAwayIsALossAtOnce) {
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  source_.reset();
  ASSERT_TRUE(finished());
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kPeerLost) << receiver_.failure_text();
}

TEST_P(Stream, NobodyListeningIsALoss) {
  const auto ended = make("ended");
  const std::string nobody = ended->listen().value()->address();
  const auto begun = receiver_.receive(receiver_.wanted(version_, nobody));
  if (!begun) {
    EXPECT_EQ(begun.error().code(), ErrorCode::kPeerLost) << begun.error().message();
    return;
  }
  ASSERT_TRUE(finished());
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kPeerLost) << receiver_.failure_text();
}

TEST_P(Stream, CancelledTransferReportsNothingMore) {
  source_->offer(version_.offer());
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  receiver_.sink->cancel();
  const std::size_t reported = receiver_.buckets.size();
  loop_.run_posted();
  EXPECT_EQ(receiver_.buckets.size(), reported);
  EXPECT_FALSE(receiver_.is_over());
  // The sink is as good as new.
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(finished());
  EXPECT_TRUE(receiver_.holds(version_));
}

TEST_P(Stream, WithdrawnVersionIsRefusedAndLetsItsMemoryGo) {
  source_->offer(version_.offer());
  EXPECT_EQ(version_.arena().try_write_lease({}).error().code(), ErrorCode::kBusy);
  source_->withdraw(version_.key().version, "superseded");
  (void)source_->counters();  // has passed the same queue
  EXPECT_TRUE(version_.arena().try_write_lease({}).has_value());
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(finished());
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kNotFound);
}

TEST_P(Stream, ASinkOnAWatchedSourceWorksBeforeAndAfterTheWatch) {
  ASSERT_TRUE(receiver_.sink->watch(source_->address()).has_value());
  source_->offer(version_.offer());
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(finished());
  receiver_.sink->unwatch();
  receiver_.done = 0;
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(finished());
  EXPECT_EQ(receiver_.done, 1) << receiver_.failure_text();
}

TEST_P(Stream, ItsTraitsAreThoseOfItsKind) {
  EXPECT_EQ(transport_->traits().kind, GetParam().kind);
  EXPECT_EQ(find_transport_kind(GetParam().kind)->maps_source, GetParam().maps_source);
  source_->offer(version_.offer());
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(finished());
  EXPECT_EQ(receiver_.view.has_value(), GetParam().maps_source);
}

// Every kind that the factory knows.
INSTANTIATE_TEST_SUITE_P(Backends, Stream, ::testing::ValuesIn(transport_kinds()),
                         [](const auto& traits) { return std::string(traits.param.kind); });

TEST(MakeTransport, AnUnknownKindIsRefusedWithThoseThatThereAre) {
  OwnerLoop loop;
  const auto made = make_transport("unknown", loop.post(), {});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(made.error().message(), ::testing::HasSubstr("only " + transport_kind_names()));
  EXPECT_EQ(make_transports("", loop.post(), {.secret = kTestSecret}).value().size(),
            transport_kinds().size());
  EXPECT_EQ(make_transports("tcp", loop.post(), {}).value().size(), 1U);
}

TEST(MakeTransport, KindsWithKeysNeedASecret) {
  OwnerLoop loop;
  const auto made = make_transports("", loop.post(), {});
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE(
      std::ranges::none_of(*made, [](const auto& each) { return each->traits().has_keys; }));
  const auto refused = make_transports("tls", loop.post(), {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("wsync keys init"));
  EXPECT_EQ(make_transports("tls", loop.post(), {.secret = kTestSecret}).value().size(), 1U);
}

}  // namespace
}  // namespace wsync::transport
