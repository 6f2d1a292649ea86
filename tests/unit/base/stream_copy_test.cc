// The streaming copy and its checksum: every kind alike, every size and alignment, and the quality
// of the checksum against the changes that accidents make.
#include "shared/base/stream_copy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <gtest/gtest.h>
#include <iostream>
#include <random>
#include <unordered_set>
#include <vector>

namespace wsync {
namespace {

using Buffer = std::vector<std::byte>;

Buffer random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffer bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(StreamCopy, PortableIsAlwaysThere) {
  ASSERT_FALSE(available_copy_kinds().empty());
  EXPECT_EQ(available_copy_kinds().front(), CopyKind::kPortable);
  EXPECT_EQ(best_copy_kind(), available_copy_kinds().back());
  for (const CopyKind kind : available_copy_kinds())
    std::cout << "copy kind " << static_cast<int>(kind) << " is tested here\n";
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
    const std::uint64_t expected = checksum(input, CopyKind::kPortable);
    for (const CopyKind kind : available_copy_kinds()) {
      ASSERT_EQ(checksum(input, kind), expected) << size;
      for (const std::size_t to : {std::size_t{0}, std::size_t{random() % 63 + 1}}) {
        alignas(64) static std::array<std::byte, 11 * 4096> memory;
        // Two calls, each checked for what it wrote and that it wrote nothing else.
        for (const bool with_checksum : {false, true}) {
          memory.fill(std::byte{0xee});
          const auto output = std::span(memory).subspan(64 + to, size);
          if (with_checksum)
            ASSERT_EQ(copy_streaming_checksum(output, input, kind), expected) << size << " " << to;
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
      EXPECT_EQ(copy_streaming_checksum(output, source, kind),
                checksum(source, CopyKind::kPortable));
      EXPECT_TRUE(equal(output, source));
    }
}

// Engines of other builds compare these values: they must never change.
TEST(Checksum, ValuesAreFixed) {
  Buffer bytes(40'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  EXPECT_EQ(checksum({}), 420065118892717055U);
  EXPECT_EQ(checksum(std::span(bytes).first(1)), 3913148814075916316U);
  EXPECT_EQ(checksum(std::span(bytes).first(64)), 8624393373100262579U);
  EXPECT_EQ(checksum(std::span(bytes).first(10'000)), 15661908256621301596U);
  EXPECT_EQ(checksum(bytes), 10192474545192092474U);
}

// Collects checksums of changed inputs; every one must differ from every other.
class Distinct {
 public:
  void add(std::span<const std::byte> bytes) {
    ++count_;
    values_.insert(checksum(bytes));
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

TEST(Checksum, SeesEverySingleBitFlip) {
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
TEST(Checksum, SeesEveryPairOfBitFlipsNearby) {
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

TEST(Checksum, SeesSwappedWordsOfEverySize) {
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

TEST(Checksum, SeesRangesThatAreZeroedMovedOrShifted) {
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

TEST(Checksum, SeesTheLength) {
  Distinct distinct;
  const Buffer zeros(8192, std::byte{0});
  for (std::size_t size = 0; size <= zeros.size(); ++size)
    distinct.add(std::span(zeros).first(size));
  distinct.expect_no_collision();
}

TEST(Checksum, SeesSparseWritesIntoZeros) {
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
