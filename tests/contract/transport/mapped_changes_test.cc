// Changes of a version from process to process of one host: in sealed memory, for a receiver that
// maps the arena of their base and wants the changes alone. Who wants the arena waits for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "shared/transport/memfd/memfd_sink.h"
#include "shared/transport/memfd/memfd_source.h"
#include "shared/transport/memfd/packet.h"
#include "shared/transport/memfd/sealed_changes.h"
#include "shared/weights/patch/leaf_changes.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/private_directory.h"

namespace wsync::transport::memfd {
namespace {

using ::testing::HasSubstr;

class MappedChanges : public ::testing::Test {
 protected:
  struct Side {
    explicit Side(std::unique_ptr<MemfdSink> sink) : receiver(std::move(sink), 0) {
      receiver.on_arrived = [this](const ArrivedBucket& bucket) {
        arrived.insert_or_assign(bucket.bucket, bucket);
      };
    }
    Receiver receiver;
    std::map<std::uint64_t, ArrivedBucket> arrived;
  };
  [[nodiscard]] std::string path() const { return directory_.path() / "host.sock"; }
  [[nodiscard]] std::unique_ptr<Side> make_side() {
    return std::make_unique<Side>(std::move(*MemfdSink::create(loop_.post())));
  }
  [[nodiscard]] FetchBase held_base() const {
    return {.version = base_.key().version,
            .data = *held_,
            .hold = held_,
            .blocks = base_.blocks(),
            .max_share = 0.4,
            .sums = base_.sums()};
  }
  [[nodiscard]] FetchRequest alone(const Side& side) const {
    FetchRequest request = side.receiver.wanted(target_, path());
    request.leaves = target_.leaves();
    request.base = held_base();
    return request;
  }
  [[nodiscard]] FetchRequest whole(const Side& side) const {
    return side.receiver.wanted(target_, path());
  }
  [[nodiscard]] Offer held_alone() {
    return {.key = target_.key(),
            .buckets = target_.buckets(),
            .data = {},
            .base = base_.key().version,
            .leaves = target_.leaves(),
            .blocks = target_.blocks(),
            .complete = false,
            .hold = nullptr,
            .on_memory_wanted = [this] { ++memory_wanted_; }};
  }
  [[nodiscard]] std::shared_ptr<const Bytes> changes_of(std::uint64_t bucket) const {
    return std::make_shared<const Bytes>(patch::LeafChangesMaker()
                                             .make(*base_.blocks(), base_.leaves()->bucket(bucket),
                                                   base_.data(), target_.data(), ~std::uint64_t{0})
                                             .value());
  }
  void report(std::uint64_t bucket) {
    source_->bucket_ready(target_.key().version, bucket, target_.digest(bucket),
                          changes_of(bucket));
  }
  void hold_alone() {
    source_->offer(held_alone());
    for (std::uint64_t i = 0; i < target_.buckets().size(); ++i) report(i);
  }
  void begin(Side& side, FetchRequest request) {
    side.arrived.clear();
    side.receiver.done = 0;
    side.receiver.failure.reset();
    const auto begun = side.receiver.receive(std::move(request));
    ASSERT_TRUE(begun.has_value()) << begun.error().message();
  }
  void run(Side& side, FetchRequest request) {
    begin(side, std::move(request));
    ASSERT_TRUE(loop_.run_until([&] { return side.receiver.is_over(); }));
  }
  void expect_changes(const Side& side) {
    EXPECT_EQ(side.receiver.done, 1) << side.receiver.failure_text();
    EXPECT_FALSE(side.receiver.view.has_value());
    ASSERT_EQ(side.arrived.size(), target_.buckets().size());
    for (const auto& [bucket, arrived] : side.arrived) {
      const auto leaves = target_.leaves()->bucket(bucket);
      EXPECT_THAT(
          arrived.sums,
          ::testing::ElementsAreArray(
              std::span(target_.sums()).subspan(target_.leaves()->first(bucket), leaves.size())));
      ASSERT_NE(arrived.changes, nullptr);
      EXPECT_EQ(*arrived.changes, *changes_of(bucket));
      EXPECT_EQ(arrived.digest, target_.digest(bucket));
    }
  }
  // All changes, as they are in sealed memory.
  [[nodiscard]] Bytes sealed() {
    Offered offered(held_alone());
    for (std::uint64_t i = 0; i < target_.buckets().size(); ++i)
      offered.set_ready(i, target_.digest(i), changes_of(i));
    const auto memory = seal_changes(offered).value();
    return {memory.bytes().begin(), memory.bytes().end()};
  }

  OwnerLoop loop_;
  PrivateDirectory directory_{"wsync_mapped_changes"};
  TestVersion base_{1};
  TestVersion target_{2, base_, 200};
  std::shared_ptr<std::vector<std::byte>> held_ =
      std::make_shared<std::vector<std::byte>>(base_.data().begin(), base_.data().end());
  int memory_wanted_ = 0;
  std::unique_ptr<MemfdSource> source_ =
      MemfdSource::listen({.path = path(), .offer_wait = std::chrono::milliseconds(700)},
                          loop_.post())
          .value();
  std::unique_ptr<Side> to_ = make_side();
};

TEST_F(MappedChanges, ComeProvenAndWithoutTheArena) {
  hold_alone();
  run(*to_, alone(*to_));
  expect_changes(*to_);
  EXPECT_EQ(source_->counters().changes, target_.buckets().size());
  const auto second = make_side();
  run(*second, alone(*second));
  expect_changes(*second);
  EXPECT_EQ(memory_wanted_, 0);
}

TEST_F(MappedChanges, AreAwaitedUntilTheLastBucketIsReady) {
  begin(*to_, alone(*to_));
  source_->offer(held_alone());
  for (std::uint64_t i = 1; i < target_.buckets().size(); ++i) report(i);
  loop_.run_posted();
  EXPECT_FALSE(to_->receiver.is_over());
  report(0);
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  expect_changes(*to_);
}

TEST_F(MappedChanges, WhoWantsTheArenaWaitsForItAndTheOwnerIsToldOnce) {
  hold_alone();
  const auto second = make_side();
  begin(*to_, whole(*to_));
  begin(*second, whole(*second));
  ASSERT_TRUE(loop_.run_until([&] { return memory_wanted_ > 0; }));
  source_->offer(target_.offer());
  for (Side* side : {to_.get(), second.get()}) {
    ASSERT_TRUE(loop_.run_until([&] { return side->receiver.is_over(); }));
    EXPECT_TRUE(side->receiver.holds(target_)) << side->receiver.failure_text();
  }
  EXPECT_EQ(memory_wanted_, 1);
}

TEST_F(MappedChanges, WhoHasAnotherBaseOrWantsFewerBytesWaitsForTheArena) {
  hold_alone();
  FetchRequest other = alone(*to_);
  other.base->version.step = 7;
  begin(*to_, std::move(other));
  ASSERT_TRUE(loop_.run_until([&] { return memory_wanted_ == 1; }));
  hold_alone();
  const auto second = make_side();
  FetchRequest fewer = alone(*second);
  fewer.base->max_share = 0;  // small changes are wanted all the same
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < target_.buckets().size(); ++i) bytes += changes_of(i)->size();
  ASSERT_GT(bytes, limits::kStreamChangesSmallBytes);
  begin(*second, std::move(fewer));
  ASSERT_TRUE(loop_.run_until([&] { return memory_wanted_ == 2; }));
  EXPECT_FALSE(second->receiver.is_over());
  EXPECT_FALSE(to_->receiver.is_over());
}

TEST_F(MappedChanges, WhereTheArenaIsHereItComesInTheirPlace) {
  source_->offer(target_.offer());
  run(*to_, alone(*to_));
  EXPECT_EQ(to_->receiver.done, 1) << to_->receiver.failure_text();
  EXPECT_TRUE(to_->receiver.holds(target_));
}

TEST_F(MappedChanges, ADamagedBaseNeedsMemory) {
  hold_alone();
  (*held_)[100] ^= std::byte{1};  // a byte that changes
  run(*to_, alone(*to_));
  ASSERT_TRUE(to_->receiver.failure.has_value());
  EXPECT_TRUE(to_->receiver.failure->needs_memory);
  EXPECT_EQ(to_->receiver.failure->error.code(), ErrorCode::kDigestMismatch)
      << to_->receiver.failure_text();
  EXPECT_TRUE(to_->arrived.empty());
}

TEST_F(MappedChanges, AnOfferThatIsReplacedOrWithdrawnIsNotSent) {
  hold_alone();
  source_->withdraw(target_.key().version, "superseded");
  begin(*to_, alone(*to_));
  source_->offer(held_alone());
  source_->withdraw(target_.key().version, "superseded");
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  EXPECT_THAT(to_->receiver.failure_text(),
              ::testing::AnyOf(HasSubstr("superseded"), HasSubstr("is not offered here")));
}

TEST_F(MappedChanges, ASourceThatSendsThemUnaskedOrUnsealedIsRefused) {
  const std::string other = directory_.path() / "other.sock";
  const auto listener = listen_at(other, Claim::kIfFree);
  ASSERT_TRUE(listener.has_value());
  const Bytes bytes = sealed();
  const std::array<std::span<const std::byte>, 1> parts{bytes};
  const auto good = SealedMemory::create("test", parts).value();
  const UniqueFd good_fd = good.share().value();
  const UniqueFd open_fd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(open_fd.get(), static_cast<off_t>(bytes.size())), 0);
  const auto answer_with = [&](FetchRequest request, int fd) {
    const auto side = make_side();
    request.source = other;
    begin(*side, std::move(request));
    const UniqueFd peer(::accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const Frame answer{
        .type = FrameType::kChanges, .key = target_.key(), .base = base_.key().version};
    EXPECT_TRUE(send_packet(peer.get(), answer, {}, {.memory = fd}));
    EXPECT_TRUE(loop_.run_until([&] { return side->receiver.is_over(); }));
    return side->receiver.failure_text();
  };
  EXPECT_EQ(answer_with(alone(*to_), good_fd.get()), "no failure");
  EXPECT_THAT(answer_with(whole(*to_), good_fd.get()), HasSubstr("not asked for"));
  EXPECT_THAT(answer_with(alone(*to_), open_fd.get()), HasSubstr("seal"));
  EXPECT_THAT(answer_with(alone(*to_), -1), HasSubstr("descriptors do not belong"));
}

TEST_F(MappedChanges, BytesThatAreMissingLeftOverOrOfSomethingElseAreRefused) {
  const FetchRequest wanted = alone(*to_);
  const Bytes good = sealed();
  ASSERT_TRUE(read_changes(wanted, good));
  const std::size_t first = kFrameBytes + changes_of(0)->size() + kTrailerBytes;
  for (const std::size_t size : {std::size_t{0}, kFrameBytes - 1, kFrameBytes, first - 1, first,
                                 first + 1, good.size() - kTrailerBytes, good.size() - 1})
    EXPECT_EQ(read_changes(wanted, std::span(good).first(size)).error().code(),
              ErrorCode::kInvalidInput)
        << size;
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THAT(read_changes(wanted, longer).error().message(), HasSubstr("1 bytes are left over"));
  // The second bucket first.
  EXPECT_THAT(read_changes(wanted, std::span(good).subspan(first)).error().message(),
              HasSubstr("expected bucket 0 of version 1.2 from 1.1, found bucket 1"));
  FetchRequest other = alone(*to_);
  ++other.key.version.step;
  EXPECT_THAT(read_changes(other, good).error().message(), HasSubstr("expected bucket 0 of"));
}

TEST_F(MappedChanges, SumsThatAreNotThoseOfTheSourceAreFound) {
  const FetchRequest wanted = alone(*to_);
  Bytes damaged = sealed();
  damaged[kFrameBytes + changes_of(0)->size()] ^= std::byte{1};  // of the digest
  for (const unsigned threads : {1U, 3U}) {
    const auto read = read_changes(wanted, damaged, threads);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), ErrorCode::kDigestMismatch);
    EXPECT_THAT(read.error().message(), HasSubstr("bucket 0"));
  }
}

TEST_F(MappedChanges, SeveralThreadsReadAndProveTheSame) {
  const FetchRequest wanted = alone(*to_);
  const Bytes good = sealed();
  const auto expected = read_changes(wanted, good);
  const auto read = read_changes(wanted, good, 3);
  ASSERT_TRUE(read && expected);
  ASSERT_EQ(read->size(), expected->size());
  for (std::size_t i = 0; i < read->size(); ++i) {
    EXPECT_EQ((*read)[i].bucket, i);
    EXPECT_EQ((*read)[i].digest, (*expected)[i].digest);
    EXPECT_EQ((*read)[i].sums, (*expected)[i].sums);
    EXPECT_EQ(*(*read)[i].changes, *(*expected)[i].changes);
  }
  // A value of the last bucket: the last byte before its digest.
  Bytes damaged = good;
  damaged[damaged.size() - kTrailerBytes - 1] ^= std::byte{1};
  for (const unsigned threads : {1U, 3U})
    EXPECT_EQ(read_changes(wanted, damaged, threads).error().code(), ErrorCode::kDigestMismatch);
}

}  // namespace
}  // namespace wsync::transport::memfd
