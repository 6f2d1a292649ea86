// The comparison of chunks against byte-by-byte loops, with every kind of instructions that this
// processor has.
#include "shared/weights/patch/difference.h"

#include <algorithm>
#include <cstddef>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "shared/base/stream_copy.h"

namespace wsync::patch {
namespace {

constexpr std::uint64_t kSeed = 77;

struct Pair {
  std::vector<std::byte> a;
  std::vector<std::byte> b;
};

// So many chunks of random bytes, and about one byte in `every` of them that differs; 0: none.
Pair random_pair(std::mt19937_64& random, std::size_t chunks, std::size_t every) {
  Pair pair;
  for (std::size_t i = 0; i < chunks * kDifferenceBytes; ++i)
    pair.a.push_back(static_cast<std::byte>(random()));
  pair.b = pair.a;
  for (std::byte& byte : pair.b)
    if (every != 0 && random() % every == 0) byte ^= static_cast<std::byte>(1U << random() % 8);
  return pair;
}

void expect_differences(const Pair& pair, std::size_t offset_a, std::size_t offset_b,
                        CopyKind kind) {
  // At addresses with these offsets from an aligned one.
  std::vector<std::byte> a(pair.a.size() + 128);
  std::vector<std::byte> b(pair.b.size() + 128);
  std::ranges::copy(pair.a, a.begin() + static_cast<std::ptrdiff_t>(offset_a));
  std::ranges::copy(pair.b, b.begin() + static_cast<std::ptrdiff_t>(offset_b));
  std::vector<ChunkDifference> found(pair.a.size() / kDifferenceBytes);
  // What was there before does not matter.
  for (ChunkDifference& chunk : found) {
    chunk.masks.fill(~std::uint64_t{0});
    chunk.stripes = 5;
    chunk.second = {.product = 1, .sum = 2};
  }
  find_differences(a.data() + offset_a, b.data() + offset_b, found, kind);
  for (std::size_t chunk = 0; chunk < found.size(); ++chunk) {
    const std::span<const std::byte> second =
        std::span(pair.b).subspan(chunk * kDifferenceBytes, kDifferenceBytes);
    for (std::size_t stripe = 0; stripe < kDifferenceBytes / kStripeBytes; ++stripe) {
      std::uint64_t mask = 0;
      for (std::size_t i = 0; i < kStripeBytes; ++i) {
        const std::size_t at = chunk * kDifferenceBytes + stripe * kStripeBytes + i;
        mask |= std::uint64_t{pair.a[at] != pair.b[at]} << i;
      }
      ASSERT_EQ(found[chunk].stripes >> stripe & 1U, mask != 0 ? 1U : 0U)
          << "chunk " << chunk << ", stripe " << stripe;
      if (found[chunk].stripes != 0) {
        ASSERT_EQ(found[chunk].masks[stripe], mask);
      }
    }
    // As a block of a tensor, with its factor.
    const WordSum sum{.product = found[chunk].second.product * sum_factor(kSeed, chunk),
                      .sum = found[chunk].second.sum};
    ASSERT_EQ(sum, word_sum(second, {.seed = kSeed, .position = chunk * kDifferenceBytes}));
  }
}

TEST(FindDifferences, EveryKindFindsEachByteAndSumsTheSecondRange) {
  std::mt19937_64 random(1);
  for (const CopyKind kind : available_copy_kinds())
    for (std::size_t chunks = 0; chunks <= 9; ++chunks)
      for (const std::size_t every : {std::size_t{0}, std::size_t{20'000}, std::size_t{500},
                                      std::size_t{3}, std::size_t{1}}) {
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", " << chunks
                                        << " chunks, one in " << every);
        expect_differences(random_pair(random, chunks, every), 0, 0, kind);
        expect_differences(random_pair(random, chunks, every), random() % 64, random() % 64, kind);
      }
}

TEST(FindDifferences, ASingleBitAnywhereIsFound) {
  std::mt19937_64 random(2);
  for (const CopyKind kind : available_copy_kinds())
    for (int i = 0; i < 200; ++i) {
      Pair pair = random_pair(random, kChunksAtOnce + 1, 0);
      pair.b[random() % pair.b.size()] ^= static_cast<std::byte>(1U << random() % 8);
      expect_differences(pair, 0, 0, kind);
    }
}

}  // namespace
}  // namespace wsync::patch
