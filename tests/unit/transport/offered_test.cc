// Which leaves of an offered bucket are sent together, if they lie apart from each other.
#include "shared/transport/offered.h"

#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "shared/base/units.h"
#include "shared/transport/limits.h"

namespace wsync::transport {
namespace {

constexpr std::uint64_t kBucketOffset = 4096;
constexpr std::uint64_t kBucketBytes = 3 * limits::kMiB + 12'288;

// Bucket 0 has no bytes. Bucket 1 has five leaves, with room before the third and behind the last.
class OfferedLeaves : public ::testing::Test {
 protected:
  OfferedLeaves() {
    std::vector<LeafPlace> leaves;
    const auto add = [&](std::uint64_t offset, std::uint64_t bytes) {
      leaves.push_back({.arena_offset = kBucketOffset + offset,
                        .bytes = bytes,
                        .place = {.seed = leaves.size() + 1, .position = 0},
                        .tensor = 0});
      sums_.push_back({.product = leaves.size(), .sum = leaves.size()});
    };
    add(0, limits::kMiB);
    add(limits::kMiB, limits::kMiB - 300);
    add(2 * limits::kMiB + 4096, limits::kMiB);
    add(3 * limits::kMiB + 4096, 1000);
    add(3 * limits::kMiB + 8192, 100);
    offer_.leaves = std::make_shared<const LeafTable>(std::move(leaves),
                                                      std::vector<std::size_t>{0, 0, sums_.size()});
    offer_.buckets = {{.offset = 0, .bytes = 0}, {.offset = kBucketOffset, .bytes = kBucketBytes}};
    offer_.data = data_;
    offer_.complete = false;
  }
  // Where the runs of bucket 1 begin in it, and its end behind the last one.
  static std::vector<std::uint64_t> runs_of(const Offered& offered) {
    std::vector<std::uint64_t> places;
    std::size_t leaf = 0;
    while (const auto run = offered.leaves_from(1, leaf)) {
      EXPECT_FALSE(run->sums.empty());
      if (run->sums.empty()) break;
      const std::uint64_t begin = run->window.offset - kBucketOffset;
      if (places.empty()) places.push_back(begin);
      EXPECT_EQ(begin, places.back()) << "no byte is left out";
      places.push_back(begin + run->window.bytes);
      leaf += run->sums.size();
    }
    return places;
  }
  const std::vector<std::byte> data_ = std::vector<std::byte>(kBucketOffset + kBucketBytes);
  std::vector<WordSum> sums_;
  Offer offer_;
};

TEST_F(OfferedLeaves, RunsHaveAllBytesOfTheBucket) {
  offer_.complete = true;
  offer_.sums = sums_;
  EXPECT_EQ(runs_of(Offered(offer_)),
            (std::vector<std::uint64_t>{0, limits::kMiB, 2 * limits::kMiB + 4096,
                                        3 * limits::kMiB + 4096, kBucketBytes}));
}

TEST_F(OfferedLeaves, OnlyThoseWhoseSumsAreKnownAreSent) {
  Offered offered(offer_);
  EXPECT_TRUE(runs_of(offered).empty());
  offered.add_leaves(1, 0, std::span(sums_).first(1));
  EXPECT_EQ(runs_of(offered), (std::vector<std::uint64_t>{0, limits::kMiB}));
  offered.add_leaves(1, 2, std::span(sums_).subspan(2));
  EXPECT_EQ(runs_of(offered), (std::vector<std::uint64_t>{0, limits::kMiB})) << "one is missing";
  offered.set_ready(1, {}, nullptr, sums_);
  EXPECT_EQ(runs_of(offered).back(), kBucketBytes);
}

TEST_F(OfferedLeaves, TheirSumsAreTakenOnce) {
  Offered offered(offer_);
  offered.add_leaves(1, 0, std::span(sums_).first(2));
  offered.add_leaves(1, 0, std::vector<WordSum>(3));  // two of them are known already
  ASSERT_EQ(offered.sums[1].size(), 3U);
  EXPECT_EQ(offered.sums[1][1], sums_[1]);
  EXPECT_EQ(offered.sums[1][2], WordSum());
}

TEST_F(OfferedLeaves, MoreThanTheBucketHasAreIgnored) {
  Offered offered(offer_);
  offered.add_leaves(1, 0, std::vector<WordSum>(sums_.size() + 1));
  offered.add_leaves(1, sums_.size(), std::vector<WordSum>(1));
  offered.add_leaves(0, 0, std::vector<WordSum>(1));
  offered.add_leaves(2, 0, std::vector<WordSum>(1));
  EXPECT_TRUE(runs_of(offered).empty());
  EXPECT_FALSE(offered.leaves_from(0, 0).has_value());
}

TEST_F(OfferedLeaves, AnOfferWithoutMemoryOrLeavesHasNone) {
  Offer without_memory = offer_;
  without_memory.data = {};
  Offer without_leaves = offer_;
  without_leaves.leaves = nullptr;
  for (const Offer& offer : {without_memory, without_leaves}) {
    Offered offered(offer);
    offered.set_ready(1, {}, nullptr, sums_);
    EXPECT_FALSE(offered.leaves_from(1, 0).has_value());
  }
}

}  // namespace
}  // namespace wsync::transport
