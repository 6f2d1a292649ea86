// The digest of bytes in device memory: its definition, and what it must find.
#include "shared/device/piece_digest.h"

#include <array>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace wsync::device {
namespace {

std::vector<std::byte> some_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Made by another program, from the definition in the header.
TEST(PieceDigest, GoldenValues) {
  std::vector<std::byte> ramp(1024);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<std::byte>(i % 256);
  const auto text_of = [](std::span<const std::byte> bytes) {
    return to_string(piece_digest(bytes));
  };
  EXPECT_EQ(text_of({}), "00000000000000000000000000000000");
  EXPECT_EQ(text_of(bytes_of("a")), "d20e7c4f5b92530338025c4459562551");
  EXPECT_EQ(text_of(bytes_of("wsync: rsync for")), "8d855109e242b8e26136fcfbd81ab295");
  EXPECT_EQ(text_of(bytes_of("wsync: rsync for model weights")),
            "59695b561c1e5dd3f2fc5edac33f2e0f");
  EXPECT_EQ(text_of(ramp), "07f28fb0d69a27f471d76ab7f69cc2c2");
  EXPECT_EQ(fold(piece_digest(ramp)), 0x43501d7fd4a17b94U);
  EXPECT_EQ(fold(piece_digest({})), 0xe220a8397b1dcdafU);
  EXPECT_EQ(
      to_string(digest_sum(bytes_of("0123456789abcdef0123456789abcdef"), std::uint64_t{1} << 40U)),
      "65f8c1b397db1fc111c55aca775fef97");
}

TEST(PieceDigest, TheSumOfAnyPartsInAnyOrderIsTheSumOfTheWhole) {
  std::mt19937_64 random(3);
  const auto all = some_bytes(5000 * kDigestGranule + 7, 1);
  const PieceDigest whole = digest_sum(all, 0);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::size_t> cuts = {0, all.size()};
    for (std::size_t n = random() % 40; n > 0; --n)
      cuts.push_back(random() % (all.size() / kDigestGranule) * kDigestGranule);
    std::sort(cuts.begin(), cuts.end());
    std::vector<PieceDigest> parts;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      parts.push_back(digest_sum(std::span(all).subspan(cuts[i], cuts[i + 1] - cuts[i]), cuts[i]));
    std::shuffle(parts.begin(), parts.end(), random);
    PieceDigest sum;
    for (const PieceDigest& part : parts) sum = add(sum, part);
    ASSERT_EQ(sum, whole) << "round " << round;
  }
}

// Lengths on both sides of every unrolled turn, and starts that no word is aligned to.
TEST(PieceDigest, IsGranuleByGranuleWhatItIsAtOnce) {
  const auto all = some_bytes(1024, 5);
  for (std::size_t start : {0U, 1U, 8U, 15U})
    for (std::size_t bytes = 0; bytes <= 700; ++bytes) {
      const auto view = std::span(all).subspan(start, bytes);
      PieceDigest sum;
      for (std::size_t at = 0; at < bytes; at += kDigestGranule)
        sum = add(sum, digest_sum(view.subspan(at, std::min(kDigestGranule, bytes - at)), at));
      ASSERT_EQ(digest_sum(view, 0), sum) << bytes << " bytes from " << start;
    }
}

TEST(PieceDigest, AnyChangedBitChangesIt) {
  for (std::size_t count : {1U, 15U, 16U, 17U, 100U, 256U}) {
    auto bytes = some_bytes(count, count);
    const PieceDigest before = piece_digest(bytes);
    for (std::size_t bit = 0; bit < 8 * count; ++bit) {
      const auto mask = static_cast<std::byte>(1U << (bit % 8));
      bytes[bit / 8] ^= mask;
      ASSERT_NE(piece_digest(bytes), before) << "bit " << bit << " of " << count << " bytes";
      ASSERT_NE(fold(piece_digest(bytes)), fold(before)) << "bit " << bit;
      bytes[bit / 8] ^= mask;
    }
  }
}

TEST(PieceDigest, SwappedGranulesChangeIt) {
  auto bytes = some_bytes(20 * kDigestGranule, 7);
  const PieceDigest before = piece_digest(bytes);
  const auto swap = [&](std::size_t i, std::size_t j) {
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(i * kDigestGranule),
                     bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * kDigestGranule),
                     bytes.begin() + static_cast<std::ptrdiff_t>(j * kDigestGranule));
  };
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t j = i + 1; j < 20; ++j) {
      swap(i, j);
      ASSERT_NE(piece_digest(bytes), before) << i << " and " << j;
      swap(i, j);
    }
  // The two words of one granule.
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 8);
  EXPECT_NE(piece_digest(bytes), before);
}

TEST(PieceDigest, MovedBytesChangeIt) {
  const auto bytes = some_bytes(640, 9);
  const PieceDigest before = piece_digest(bytes);
  for (std::ptrdiff_t by = 1; by < 640; ++by) {
    auto moved = bytes;
    std::rotate(moved.begin(), moved.begin() + by, moved.end());
    ASSERT_NE(piece_digest(moved), before) << by;
  }
}

TEST(PieceDigest, ZerosAtTheEndAndLengthsCount) {
  std::vector<PieceDigest> seen;
  std::vector<std::byte> bytes = some_bytes(20, 11);
  for (int length = 0; length < 100; ++length) {
    const PieceDigest digest = piece_digest(bytes);
    ASSERT_EQ(std::count(seen.begin(), seen.end(), digest), 0) << bytes.size();
    seen.push_back(digest);
    bytes.push_back(std::byte{0});
  }
  // Only zeros, too.
  seen.clear();
  for (std::size_t length = 0; length < 100; ++length) {
    const PieceDigest digest = piece_digest(std::vector<std::byte>(length));
    ASSERT_EQ(std::count(seen.begin(), seen.end(), digest), 0) << length;
    seen.push_back(digest);
  }
}

TEST(PieceDigest, TheSameBytesElsewhereAreOthers) {
  const auto bytes = some_bytes(64, 13);
  EXPECT_NE(digest_sum(bytes, 0), digest_sum(bytes, 16));
  EXPECT_NE(digest_sum(bytes, 16), digest_sum(bytes, std::uint64_t{16} << 32U));
}

TEST(PieceDigestDeathTest, PartsBeginAtGranules) {
  const auto bytes = some_bytes(16, 1);
  EXPECT_DEATH((void)digest_sum(bytes, 8), "cut into granules");
}

}  // namespace
}  // namespace wsync::device
