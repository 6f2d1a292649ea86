#include "shared/transport/change_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

namespace wsync::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Version step(std::uint64_t number) { return {.epoch = 1, .step = number}; }
ChangeLinks::Changes changes_of(std::size_t bytes) { return std::make_shared<const Bytes>(bytes); }

TEST(ChangeLinks, AreFoundByBothVersionsAndTheBucket) {
  ChangeLinks links;
  links.set_bytes_max(10'000);
  const auto some = changes_of(10);
  links.keep(step(1), step(2), 7, some);
  links.keep(step(1), step(3), 7, changes_of(0));
  links.keep(step(2), step(3), 7, changes_of(1));
  EXPECT_EQ(links.find(step(1), step(2), 7), some);
  EXPECT_EQ(links.find(step(1), step(2), 6), nullptr);
  EXPECT_EQ(links.find(step(2), step(1), 7), nullptr);
  EXPECT_EQ(links.find(step(1), step(4), 7), nullptr);
  EXPECT_EQ(links.find(step(4), step(3), 7), nullptr);
  EXPECT_THAT(links.bases_of(step(3)), ElementsAre(step(1), step(2)));
  EXPECT_THAT(links.targets_of(step(1)), ElementsAre(step(2), step(3)));
  EXPECT_THAT(links.targets_of(step(3)), IsEmpty());
  EXPECT_THAT(links.bases_of(step(1)), IsEmpty());
}

TEST(ChangeLinks, AreDroppedFromAVersionAndToOne) {
  ChangeLinks links;
  links.set_bytes_max(10'000);
  for (std::uint64_t bucket = 0; bucket < 3; ++bucket) {
    links.keep(step(1), step(2), bucket, changes_of(10));
    links.keep(step(1), step(3), bucket, changes_of(20));
    links.keep(step(2), step(3), bucket, changes_of(30));
  }
  const std::uint64_t all = links.bytes();
  links.drop_to(step(2));
  EXPECT_THAT(links.bases_of(step(2)), IsEmpty());
  EXPECT_NE(links.find(step(1), step(3), 2), nullptr);
  links.drop_from(step(2));
  EXPECT_THAT(links.bases_of(step(3)), ElementsAre(step(1)));
  EXPECT_LT(links.bytes(), all);
  links.drop_from(step(2));
  links.drop_to(step(3));
  EXPECT_EQ(links.bytes(), 0U);
  EXPECT_THAT(links.targets_of(step(1)), IsEmpty());
}

TEST(ChangeLinks, OneThatIsReplacedIsCountedOnce) {
  ChangeLinks links;
  links.set_bytes_max(10'000);
  links.keep(step(1), step(2), 0, changes_of(10));
  const std::uint64_t once = links.bytes();
  links.keep(step(1), step(2), 0, changes_of(10));
  EXPECT_EQ(links.bytes(), once);
  links.keep(step(1), step(2), 0, changes_of(30));
  EXPECT_EQ(links.bytes(), once + 20);
  links.clear();
  EXPECT_EQ(links.bytes(), 0U);
  EXPECT_EQ(links.find(step(1), step(2), 0), nullptr);
}

TEST(ChangeLinks, ThoseFromTheOldestVersionMakeRoomBucketByBucket) {
  ChangeLinks links;
  links.set_bytes_max(4'000);
  links.keep(step(1), step(3), 0, changes_of(1'000));
  links.keep(step(1), step(3), 1, changes_of(1'000));
  links.keep(step(2), step(3), 0, changes_of(1'000));
  links.keep(step(2), step(3), 1, changes_of(1'000));
  EXPECT_EQ(links.find(step(1), step(3), 0), nullptr);
  EXPECT_NE(links.find(step(1), step(3), 1), nullptr);
  EXPECT_LE(links.bytes(), 4'000U);
  links.set_bytes_max(3'000);
  EXPECT_THAT(links.bases_of(step(3)), ElementsAre(step(2)));
  EXPECT_NE(links.find(step(2), step(3), 0), nullptr);
  // One that is too large for itself is not kept.
  links.keep(step(2), step(3), 2, changes_of(5'000));
  EXPECT_THAT(links.bases_of(step(3)), IsEmpty());
  EXPECT_EQ(links.bytes(), 0U);
}

TEST(ChangeLinks, LeadFromAFewVersionsAtMost) {
  ChangeLinks links;
  links.set_bytes_max(1'000'000);
  for (std::uint64_t from = 1; from <= limits::kStreamLinkBases + 2; ++from)
    links.keep(step(from), step(100), 0, changes_of(10));
  EXPECT_EQ(links.bases_of(step(100)).size(), limits::kStreamLinkBases);
  EXPECT_EQ(links.bases_of(step(100)).front(), step(3));
  links.keep(step(1), step(100), 0, changes_of(10));
  EXPECT_EQ(links.find(step(1), step(100), 0), nullptr);
}

// Whatever is kept and dropped, the count is that of what is there.
TEST(ChangeLinks, AreCountedAsTheyAre) {
  std::mt19937_64 random(3);
  ChangeLinks links;
  links.set_bytes_max(20'000);
  const auto some_step = [&] { return step(1 + random() % 8); };
  for (int i = 0; i < 20'000; ++i) {
    switch (random() % 12) {
      case 0:
        links.drop_to(some_step());
        break;
      case 1:
        links.drop_from(some_step());
        break;
      case 2:
        links.set_bytes_max(5'000 + random() % 20'000);
        break;
      default:
        links.keep(some_step(), some_step(), random() % 5, changes_of(random() % 3'000));
    }
    ASSERT_LE(links.bytes(), links.bytes_max());
    std::size_t bases = 0;
    std::uint64_t bytes = 0;
    for (std::uint64_t from = 1; from <= 8; ++from) {
      const auto targets = links.targets_of(step(from));
      bases += targets.empty() ? 0U : 1U;
      for (const Version& to : targets)
        for (std::uint64_t bucket = 0; bucket < 5; ++bucket)
          if (const auto found = links.find(step(from), to, bucket)) bytes += found->size();
    }
    ASSERT_LE(bases, limits::kStreamLinkBases);
    ASSERT_LE(bytes, links.bytes());
  }
  for (std::uint64_t from = 1; from <= 8; ++from) links.drop_from(step(from));
  EXPECT_EQ(links.bytes(), 0U);
}

}  // namespace
}  // namespace wsync::transport
