// One suite over every backend of shared/transport.
#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "shared/transport/memfd/memfd_sink.h"
#include "shared/transport/memfd/memfd_source.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"
#include "tests/contract/transport/stream_fixture.h"

namespace wsync::transport {
namespace {

constexpr std::chrono::milliseconds kShort{700};  // a deadline that a test waits for

// A backend's two ends, with whatever they run on.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<BucketSource> source() = 0;
  virtual std::unique_ptr<BucketSink> sink() = 0;
  virtual std::string address_of_nobody() = 0;
};

class TcpBackend final : public Backend {
 public:
  explicit TcpBackend(OwnerLoop& loop) : loop_(loop), thread_(std::move(*tcp::UvThread::start())) {}
  std::unique_ptr<BucketSource> source() override {
    return std::move(*tcp::TcpSource::listen(*thread_, {.offer_wait = kShort}));
  }
  std::unique_ptr<BucketSink> sink() override {
    return std::make_unique<tcp::TcpSink>(*thread_, loop_.post());
  }
  std::string address_of_nobody() override { return source()->address(); }

 private:
  OwnerLoop& loop_;
  std::unique_ptr<tcp::UvThread> thread_;
};

class MemfdBackend final : public Backend {
 public:
  explicit MemfdBackend(OwnerLoop& loop) : loop_(loop) {
    std::string name = ::testing::TempDir() + "wsync_stream_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~MemfdBackend() override { std::filesystem::remove_all(directory_); }
  std::unique_ptr<BucketSource> source() override {
    auto source = memfd::MemfdSource::listen(
        {.path = directory_ / "host.sock", .offer_wait = kShort}, loop_.post());
    EXPECT_TRUE(source.has_value()) << source.error().message();
    return std::move(*source);
  }
  std::unique_ptr<BucketSink> sink() override {
    return std::move(*memfd::MemfdSink::create(loop_.post()));
  }
  std::string address_of_nobody() override { return directory_ / "nobody.sock"; }

 private:
  OwnerLoop& loop_;
  std::filesystem::path directory_;
};

using MakeBackend = std::unique_ptr<Backend> (*)(OwnerLoop&);
struct Named {
  const char* name;
  MakeBackend make;
};

class Stream : public ::testing::TestWithParam<Named> {
 protected:
  OwnerLoop loop_;
  std::unique_ptr<Backend> backend_ = GetParam().make(loop_);
  TestVersion version_{1};
  std::unique_ptr<BucketSource> source_ = backend_->source();
  Receiver receiver_{backend_->sink(), version_.data().size()};

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
}

TEST_P(Stream, VersionThatIsOfferedLaterIsWaitedFor) {
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  source_->offer(version_.offer());
  ASSERT_TRUE(finished());
  EXPECT_EQ(receiver_.done, 1) << receiver_.failure_text();
}

TEST_P(Stream, SeveralSinksTakeTheSameVersion) {
  source_->offer(version_.offer());
  Receiver other(backend_->sink(), version_.data().size());
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
  const std::string nobody = backend_->address_of_nobody();
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

INSTANTIATE_TEST_SUITE_P(Backends, Stream,
                         ::testing::Values(Named{"memfd",
                                                 [](OwnerLoop& loop) -> std::unique_ptr<Backend> {
                                                   return std::make_unique<MemfdBackend>(loop);
                                                 }},
                                           Named{"tcp",
                                                 [](OwnerLoop& loop) -> std::unique_ptr<Backend> {
                                                   return std::make_unique<TcpBackend>(loop);
                                                 }}),
                         [](const auto& named) { return std::string(named.param.name); });

}  // namespace
}  // namespace wsync::transport
