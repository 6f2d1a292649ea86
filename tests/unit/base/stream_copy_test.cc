// The streaming copy and its sum: every kind alike, every size, alignment and position, and the
// quality of the sum against the changes that accidents make.
#include "shared/base/stream_copy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <gtest/gtest.h>
#include <iostream>
#include <random>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/support/bytes.h"

namespace wsync {
namespace {

using Buffer = std::vector<std::byte>;

Buffer random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffer bytes(count);
  fill_random(random, bytes);
  return bytes;
}

TEST(StreamCopy, PortableIsAlwaysThere) {
  ASSERT_FALSE(available_copy_kinds().empty());
  EXPECT_EQ(available_copy_kinds().front(), CopyKind::kPortable);
  EXPECT_EQ(best_copy_kind(), available_copy_kinds().back());
  for (const CopyKind kind : available_copy_kinds())
    std::cout << "copy kind " << static_cast<int>(kind) << " is tested here\n";
}

// As the header defines it, word by word.
WordSum sum_by_definition(std::span<const std::byte> bytes, const SumPlace& place) {
  std::vector<std::uint64_t> keys;
  std::uint64_t state = 0x7773796e63;
  for (int i = 0; i < 512; ++i) keys.push_back(splitmix(state += 0x9e3779b97f4a7c15));
  WordSum total;
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    const std::uint64_t i = (place.position + at) / 8;
    const std::uint64_t x = word ^ keys[i % 512];
    total.product += sum_factor(place.seed, i / 512) * ((x & 0xffffffffU) * (x >> 32U));
    total.sum += word;
  }
  return total;
}

// Blocks have 4 KiB and four of them are read side by side: sizes around each multiple of both.
std::vector<std::size_t> sizes_to_try() {
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size <= 4096 + 300; ++size) sizes.push_back(size);
  for (std::size_t blocks = 2; blocks <= 9; ++blocks)
    for (std::size_t size = blocks * 4096 - 130; size <= blocks * 4096 + 130; ++size)
      sizes.push_back(size);
  return sizes;
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

TEST(StreamCopy, EveryKindSizeAndAlignmentGivesTheSame) {
  const Buffer source = random_bytes(10 * 4096, 1);
  const Buffer untouched(11 * 4096, std::byte{0xee});
  std::mt19937_64 random(2);
  for (const std::size_t size : sizes_to_try()) {
    const std::size_t from = random() % 64;
    const auto input = std::span(source).subspan(from, size);
    // Half of them begin at a block or a stripe, as whole tensors and buckets do.
    const std::uint64_t words = random() % 3000;
    const SumPlace place{.seed = random(), .position = (size % 2 == 0 ? words / 8 * 8 : words) * 8};
    const WordSum expected = sum_by_definition(input, place);
    for (const CopyKind kind : available_copy_kinds()) {
      ASSERT_EQ(word_sum(input, place, kind), expected) << size;
      for (const std::size_t to :
           {std::size_t{0}, std::size_t{place.position % 64}, std::size_t{random() % 63 + 1}}) {
        alignas(64) static std::array<std::byte, 11 * 4096> memory;
        // Two calls, each checked for what it wrote and that it wrote nothing else.
        for (const bool with_sum : {false, true}) {
          memory.fill(std::byte{0xee});
          const auto output = std::span(memory).subspan(64 + to, size);
          if (with_sum)
            ASSERT_EQ(copy_streaming_sum(output, input, place, kind), expected)
                << size << " " << to;
          else
            copy_streaming(output, input, kind);
          const auto before = std::span(memory).first(64 + to);
          const auto after = std::span(memory).subspan(64 + to + size);
          ASSERT_TRUE(equal(output, input)) << size;
          ASSERT_TRUE(equal(before, std::span(untouched).first(before.size()))) << size;
          ASSERT_TRUE(equal(after, std::span(untouched).first(after.size()))) << size;
        }
      }
    }
  }
}

TEST(StreamCopy, LargeAndUnalignedCopies) {
  const Buffer source = random_bytes((1U << 20U) + 77, 3);
  Buffer destination(source.size() + 64);
  for (const CopyKind kind : available_copy_kinds())
    for (const std::size_t to : {0U, 1U, 16U, 63U}) {
      std::fill(destination.begin(), destination.end(), std::byte{0});
      const auto output = std::span(destination).subspan(to, source.size());
      const SumPlace place{.seed = 5, .position = 8 * to};
      EXPECT_EQ(copy_streaming_sum(output, source, place, kind),
                word_sum(source, place, CopyKind::kPortable));
      EXPECT_TRUE(equal(output, source));
    }
}

TEST(WordSum, ThePartsAddUpToTheWholeInAnyOrder) {
  const Buffer bytes = random_bytes(100'003, 7);
  const std::uint64_t seed = seed_of("model.layers.0.weight");
  const WordSum whole = word_sum(bytes, {.seed = seed});
  std::mt19937_64 random(8);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::size_t> cuts{0, bytes.size()};
    for (int i = 0; i < 5; ++i) cuts.push_back(random() % (bytes.size() / 8) * 8);
    std::sort(cuts.begin(), cuts.end());
    std::vector<WordSum> parts;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      parts.push_back(word_sum(std::span(bytes).subspan(cuts[i], cuts[i + 1] - cuts[i]),
                               {.seed = seed, .position = cuts[i]}));
    std::shuffle(parts.begin(), parts.end(), random);
    WordSum total;
    for (const WordSum& part : parts) total += part;
    ASSERT_EQ(total, whole);
  }
}

// Other releases, GPUs and other languages compute these values: they must never change.
TEST(WordSum, ValuesAreFixed) {
  Buffer bytes(40'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const std::uint64_t seed = seed_of("w");
  const auto told = [&](std::size_t size) {
    return digest_of(word_sum(std::span(bytes).first(size), {.seed = seed}), size).to_string();
  };
  EXPECT_EQ(seed, 12461153361671568937U);
  EXPECT_EQ(told(0), "10e45c7ce2292320743df94ee4c78a2a");
  EXPECT_EQ(told(1), "24a7d6ed40edba42a43d11e99929b7aa");
  EXPECT_EQ(told(64), "1d5d073be8cffe127bfe524a1c02e63f");
  EXPECT_EQ(told(10'000), "3ffce19a0a844991968c25a9db8af8c9");
  EXPECT_EQ(told(40'000), "28121c7a6dc330525b76ff0bb0dffefa");
}

// Two experts of one shape: their bytes differ, and their sums too, but also a sum of sums that
// ignores the names would stay the same.
TEST(WordSum, SeesTensorsThatAreTakenForEachOther) {
  const Buffer a = random_bytes(9 * 4096, 41);
  const Buffer b = random_bytes(9 * 4096, 42);
  const auto sum = [](std::string_view name, std::span<const std::byte> bytes) {
    return word_sum(bytes, {.seed = seed_of(name)});
  };
  EXPECT_NE(sum("experts.0.w", a), sum("experts.1.w", a));
  EXPECT_NE(sum("experts.0.w", a) + sum("experts.1.w", b),
            sum("experts.0.w", b) + sum("experts.1.w", a));
  EXPECT_EQ((sum("experts.0.w", a) + sum("experts.1.w", b)).sum,
            (sum("experts.0.w", b) + sum("experts.1.w", a)).sum)
      << "the plain sum alone sees nothing";
}

TEST(WordSum, SeesEveryPairOfSwappedBlocks) {
  const Buffer original = random_bytes(64 * 4096, 51);
  const auto block = [&](std::size_t i) { return std::span(original).subspan(i * 4096, 4096); };
  const WordSum whole = word_sum(original, {});
  std::unordered_set<std::uint64_t> values;
  std::size_t count = 0;
  for (std::size_t a = 0; a < 64; ++a)
    for (std::size_t b = a + 1; b < 64; ++b, ++count) {
      WordSum swapped = whole;
      for (const auto& [from, to] : {std::pair{a, a}, {b, b}}) {
        const WordSum gone = word_sum(block(from), {.seed = 0, .position = to * 4096});
        swapped.product -= gone.product;
        swapped.sum -= gone.sum;
      }
      swapped += word_sum(block(a), {.seed = 0, .position = b * 4096});
      swapped += word_sum(block(b), {.seed = 0, .position = a * 4096});
      ASSERT_NE(swapped.product, whole.product);
      ASSERT_EQ(swapped.sum, whole.sum);
      values.insert(swapped.product);
    }
  EXPECT_EQ(values.size(), count);
}

// The stated probability: two words of a block that change so that the plain sum stays the same are
// missed with about 2^-32. So of 2^20 random pairs with halves of 12 bits that differ, about 2^20 /
// 2^32 would be missed; more than one would show that the keys do not separate them.
TEST(WordSum, SeesChangesThatThePlainSumCannotSee) {
  std::mt19937_64 random(61);
  Buffer block = random_bytes(4096, 62);
  const auto word = [&](std::size_t i) {
    std::uint64_t value = 0;
    std::memcpy(&value, block.data() + 8 * i, 8);
    return value;
  };
  const WordSum whole = word_sum(block, {.seed = 9});
  std::size_t missed = 0;
  for (std::size_t round = 0; round < (1U << 16U); ++round) {
    const std::size_t a = random() % 512;
    const std::size_t b = (a + 1 + random() % 511) % 512;
    const std::uint64_t change = 1 + random() % 4096;
    const std::uint64_t before_a = word(a);
    const std::uint64_t before_b = word(b);
    const std::uint64_t after_a = before_a + change;
    const std::uint64_t after_b = before_b - change;
    std::memcpy(block.data() + 8 * a, &after_a, 8);
    std::memcpy(block.data() + 8 * b, &after_b, 8);
    const WordSum changed = word_sum(block, {.seed = 9});
    EXPECT_EQ(changed.sum, whole.sum);
    missed += changed.product == whole.product ? 1 : 0;
    std::memcpy(block.data() + 8 * a, &before_a, 8);
    std::memcpy(block.data() + 8 * b, &before_b, 8);
  }
  EXPECT_EQ(missed, 0U);
}

// Collects sums of changed inputs; every one must differ from every other.
class Distinct {
 public:
  void add(std::span<const std::byte> bytes) {
    ++count_;
    values_.insert(fold(word_sum(bytes, {}), bytes.size()));
  }
  void expect_no_collision() const { EXPECT_EQ(values_.size(), count_); }

 private:
  std::unordered_set<std::uint64_t> values_;
  std::size_t count_ = 0;
};

// What weights look like: random, all zero, all one value, small bf16 values.
std::vector<Buffer> typical_blocks(std::size_t bytes) {
  std::vector<Buffer> blocks;
  blocks.push_back(random_bytes(bytes, 11));
  blocks.emplace_back(bytes, std::byte{0});
  blocks.emplace_back(bytes, std::byte{0xff});
  Buffer small(bytes);
  std::mt19937_64 random(12);
  std::normal_distribution<float> normal(0, 0.02F);
  for (std::size_t i = 0; i + 2 <= bytes; i += 2) {
    const auto bits =
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16U);
    std::memcpy(small.data() + i, &bits, 2);
  }
  blocks.push_back(small);
  return blocks;
}

TEST(WordSum, SeesEverySingleBitFlip) {
  for (Buffer& block : typical_blocks(4096 + 24)) {
    Distinct distinct;
    distinct.add(block);
    for (std::size_t bit = 0; bit < block.size() * 8; ++bit) {
      const auto mask = static_cast<std::byte>(1U << (bit % 8));
      block[bit / 8] ^= mask;
      distinct.add(block);
      block[bit / 8] ^= mask;
    }
    distinct.expect_no_collision();
  }
}

// Three stripes: keys with an arithmetic relation fail here.
TEST(WordSum, SeesEveryPairOfBitFlipsNearby) {
  for (Buffer block : {Buffer(192, std::byte{0}), typical_blocks(192).back()}) {
    Distinct distinct;
    const std::size_t bits = block.size() * 8;
    const auto flip = [&](std::size_t bit) {
      block[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    };
    for (std::size_t a = 0; a < bits; ++a) {
      flip(a);
      for (std::size_t b = a + 1; b < bits; ++b) {
        flip(b);
        distinct.add(block);
        flip(b);
      }
      flip(a);
    }
    distinct.expect_no_collision();
  }
}

TEST(WordSum, SeesSwappedWordsOfEverySize) {
  // Every pair of 8-byte words of 4 KiB, and random pairs of 2-, 4-, 64- and 256-byte units.
  Buffer block = random_bytes(4096, 21);
  const auto swap = [&](std::size_t a, std::size_t b, std::size_t unit) {
    std::swap_ranges(block.begin() + static_cast<long>(a * unit),
                     block.begin() + static_cast<long>((a + 1) * unit),
                     block.begin() + static_cast<long>(b * unit));
  };
  for (const std::size_t unit : {2U, 4U, 8U, 64U, 256U}) {
    Distinct distinct;
    distinct.add(block);
    const std::size_t units = std::min<std::size_t>(block.size() / unit, 512);
    for (std::size_t a = 0; a < units; ++a)
      for (std::size_t b = a + 1; b < units; ++b) {
        if (std::memcmp(&block[a * unit], &block[b * unit], unit) == 0) continue;
        swap(a, b, unit);
        distinct.add(block);
        swap(a, b, unit);
      }
    distinct.expect_no_collision();
  }
}

TEST(WordSum, SeesRangesThatAreZeroedMovedOrShifted) {
  // Two groups of side-by-side blocks: a block that lands in another stream, or in the same one
  // but later, is seen.
  const Buffer original = random_bytes(32768, 31);
  Distinct distinct;
  distinct.add(original);
  for (std::size_t begin = 0; begin < original.size(); begin += 64)
    for (std::size_t bytes = 64; begin + bytes <= original.size(); bytes *= 2) {
      Buffer zeroed = original;
      std::fill_n(zeroed.begin() + static_cast<long>(begin), bytes, std::byte{0});
      distinct.add(zeroed);
    }
  for (std::size_t by = 1; by < 4096; ++by) {
    Buffer rotated(original.size());
    std::memcpy(rotated.data(), original.data() + by, original.size() - by);
    std::memcpy(rotated.data() + original.size() - by, original.data(), by);
    distinct.add(rotated);
  }
  for (std::size_t from = 0; from < original.size(); from += 1024)
    for (std::size_t to = 0; to < original.size(); to += 1024) {
      if (from == to) continue;
      Buffer stale = original;  // a block that was copied to the wrong place
      std::copy_n(original.begin() + static_cast<long>(from), 1024,
                  stale.begin() + static_cast<long>(to));
      distinct.add(stale);
    }
  distinct.expect_no_collision();
}

TEST(WordSum, SeesTheLength) {
  Distinct distinct;
  const Buffer zeros(8192, std::byte{0});
  for (std::size_t size = 0; size <= zeros.size(); ++size)
    distinct.add(std::span(zeros).first(size));
  distinct.expect_no_collision();
}

TEST(WordSum, SeesSparseWritesIntoZeros) {
  // The hardest input: nearly everything equal. One or two small values at any two places.
  Buffer block(4096, std::byte{0});
  Distinct distinct;
  const auto put = [&](std::size_t word, std::uint64_t value) {
    std::memcpy(block.data() + word * 8, &value, 8);
  };
  for (std::size_t a = 0; a < 512; ++a)
    for (std::size_t b = a + 1; b < 512; ++b)
      for (const std::uint64_t value :
           {std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{1} << 32U}) {
        // Opposite values, so that a plain sum would not see them.
        put(a, value);
        put(b, ~value + 1);
        distinct.add(block);
        put(a, 0);
        put(b, 0);
      }
  distinct.expect_no_collision();
}

}  // namespace
}  // namespace wsync
