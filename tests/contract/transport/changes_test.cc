// What every kind that copies does for a receiver that holds another version of the layout: only
// what changes travels, and every byte of the result is proven.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utility>

#include "shared/base/units.h"
#include "shared/transport/make_transport.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/private_directory.h"

namespace wsync::transport {
namespace {

class Changes : public ::testing::TestWithParam<TransportTraits> {
 protected:
  // A source, and a receiver for versions of this size.
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
                                                 .secret = kTestSecret})
                                     .value(),
                                 base_.data().size());
  }
  // The copy of the base that the receiver holds.
  [[nodiscard]] FetchBase held_base(double max_share = 0.4) const {
    return {.version = base_.key().version,
            .data = *held_,
            .hold = held_,
            .blocks = base_.blocks(),
            .max_share = max_share};
  }
  // Fetches a version that is offered at `from_`, and waits for the end.
  void fetch(End& to, const TestVersion& wanted, std::optional<FetchBase> base = std::nullopt) {
    FetchRequest request = to.receiver.wanted(wanted, from_->source->address());
    request.base = base ? std::move(base) : held_base();
    const auto begun = to.receiver.receive(std::move(request));
    ASSERT_TRUE(begun.has_value()) << begun.error().message();
    ASSERT_TRUE(loop_.run_until([&] { return to.receiver.is_over(); }));
    EXPECT_FALSE(to.receiver.failure.has_value()) << to.receiver.failure_text();
    EXPECT_TRUE(to.receiver.holds(wanted));
    WordSum sum;
    for (const WordSum& leaf : wanted.sums()) sum += leaf;
    EXPECT_EQ(to.receiver.received, sum) << "the sums are of what is there now";
  }

  OwnerLoop loop_;
  PrivateDirectory directory_{"wsync_changes"};
  int made_ = 0;
  TestVersion base_{1};
  TestVersion target_{2, base_, 2'000};
  std::shared_ptr<std::vector<std::byte>> held_ =
      std::make_shared<std::vector<std::byte>>(base_.data().begin(), base_.data().end());
  std::unique_ptr<End> from_ = make_end();
  std::unique_ptr<End> to_ = make_end();
};

TEST_P(Changes, OnlyWhatChangesTravels) {
  from_->source->offer(base_.offer());
  from_->source->offer(target_.offer());
  fetch(*to_, target_);
  EXPECT_EQ(to_->receiver.by_changes, target_.buckets().size());
  const SourceCounters counters = from_->source->counters();
  EXPECT_EQ(counters.changes, counters.buckets);
  EXPECT_LT(counters.wire_bytes, target_.data().size() / 100);
  EXPECT_LT(to_->receiver.payload_bytes, target_.data().size() / 100);
}

TEST_P(Changes, AnEqualVersionNeedsNextToNothing) {
  const TestVersion equal(2, base_, 2 * base_.data().size());
  from_->source->offer(base_.offer());
  from_->source->offer(equal.offer());
  fetch(*to_, equal);
  EXPECT_EQ(to_->receiver.payload_bytes, 8 * equal.buckets().size());
}

TEST_P(Changes, ASourceWithoutTheBaseSendsAll) {
  from_->source->offer(target_.offer());
  fetch(*to_, target_);
  EXPECT_EQ(to_->receiver.by_changes, 0U);
  EXPECT_EQ(from_->source->counters().changes, 0U);
}

TEST_P(Changes, AWithdrawnBaseIsNone) {
  from_->source->offer(base_.offer());
  from_->source->offer(target_.offer());
  from_->source->withdraw(base_.key().version, "its memory is needed");
  fetch(*to_, target_);
  EXPECT_EQ(to_->receiver.by_changes, 0U);
}

TEST_P(Changes, ABaseThatStillArrivesIsNone) {
  Offer arriving = base_.offer();
  arriving.complete = false;
  from_->source->offer(std::move(arriving));
  from_->source->bucket_ready(base_.key().version, 1, base_.digest(1));
  from_->source->offer(target_.offer());
  fetch(*to_, target_);
  EXPECT_EQ(to_->receiver.by_changes, 1U);
  EXPECT_EQ(from_->source->counters().changes, 1U) << "only bucket 1 has arrived";
}

TEST_P(Changes, ABaseOfAnotherLayoutIsNone) {
  const TestVersion other(1, base_.data().size() + limits::kMiB);
  Offer offer = other.offer();
  offer.key.layout.low += 1;
  from_->source->offer(std::move(offer));
  from_->source->offer(target_.offer());
  fetch(*to_, target_);
  EXPECT_EQ(to_->receiver.by_changes, 0U);
}

TEST_P(Changes, TheVersionItselfIsNoBase) {
  from_->source->offer(target_.offer());
  FetchBase itself = held_base();
  itself.version = target_.key().version;
  fetch(*to_, target_, std::move(itself));
  EXPECT_EQ(to_->receiver.by_changes, 0U);
}

TEST_P(Changes, LargerOnesThanWantedAreNotSent) {
  const TestVersion far(2, base_, 2);
  from_->source->offer(base_.offer());
  from_->source->offer(far.offer());
  fetch(*to_, far);
  EXPECT_EQ(to_->receiver.by_changes, 0U);
  const auto strict = make_end();
  from_->source->offer(target_.offer());
  fetch(*strict, target_, held_base(0.0001));
  EXPECT_EQ(strict->receiver.by_changes, 0U);
}

TEST_P(Changes, AnotherBaseInAWordThatChangesCostsTheRestInFull) {
  from_->source->offer(base_.offer());
  from_->source->offer(target_.offer());
  (*held_)[1000] ^= std::byte{0x40};  // the first byte that changes
  fetch(*to_, target_);
  EXPECT_LT(to_->receiver.by_changes, target_.buckets().size());
}

TEST_P(Changes, AnotherBaseInAWordThatStaysCostsTheRestInFull) {
  from_->source->offer(base_.offer());
  from_->source->offer(target_.offer());
  (*held_)[2000] ^= std::byte{0x40};  // half way between two bytes that change
  fetch(*to_, target_);
  EXPECT_LT(to_->receiver.by_changes, target_.buckets().size()) << "the result is not proven";
}

TEST_P(Changes, BucketsThatAreThereAreNotAskedFor) {
  from_->source->offer(base_.offer());
  from_->source->offer(target_.offer());
  std::ranges::copy(target_.data().first(3 * limits::kMiB), to_->receiver.memory->begin());
  FetchRequest request = to_->receiver.wanted(target_, from_->source->address());
  request.base = held_base();
  request.have = std::vector<bool>(target_.buckets().size(), false);
  for (std::size_t i = 0; i < 3; ++i) request.have[i] = true;
  ASSERT_TRUE(to_->receiver.receive(std::move(request)).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  EXPECT_TRUE(to_->receiver.holds(target_));
  EXPECT_EQ(to_->receiver.by_changes, target_.buckets().size() - 3);
}

TEST_P(Changes, ARelayThatHoldsTheBaseSendsChangesOfWhatArrives) {
  const auto relay = make_end();
  from_->source->offer(base_.offer());
  from_->source->offer(target_.offer());
  relay->source->offer(base_.offer());
  relay->source->offer({.key = target_.key(),
                        .buckets = target_.buckets(),
                        .data = *relay->receiver.memory,
                        .leaves = target_.leaves(),
                        .blocks = target_.blocks(),
                        .complete = false,
                        .hold = relay->receiver.memory});
  relay->receiver.relay = [&](const ArrivedBucket& arrived) {
    relay->source->bucket_ready(target_.key().version, arrived.bucket, arrived.digest);
  };
  FetchRequest last = to_->receiver.wanted(target_, relay->source->address());
  last.base = held_base();
  ASSERT_TRUE(to_->receiver.receive(std::move(last)).has_value());
  fetch(*relay, target_);
  ASSERT_TRUE(loop_.run_until([&] { return to_->receiver.is_over(); }));
  EXPECT_TRUE(to_->receiver.holds(target_)) << to_->receiver.failure_text();
  EXPECT_EQ(to_->receiver.by_changes, target_.buckets().size());
  EXPECT_EQ(relay->source->counters().changes, target_.buckets().size());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Changes, ::testing::ValuesIn(kinds_that_copy()),
                         [](const auto& kind) { return std::string(kind.param.kind); });

}  // namespace
}  // namespace wsync::transport
