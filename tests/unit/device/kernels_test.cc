// The kernels' body, run thread by thread on the host, against a plain reference; the shape of a
// launch.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <vector>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/device/cuda/kernel_table.h"
#include "shared/device/cuda/kernels_body.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {
namespace {

constexpr std::uint64_t kMemoryBytes = limits::kMiB;
constexpr std::uint32_t kMultiprocessors = 132;

using Buffer = std::vector<std::byte>;

// What a batch must leave behind, byte by byte and granule by granule.
struct Expected {
  Buffer to;
  std::vector<PieceDigest> sums;
};

Expected expected_of(std::span<const Piece> pieces, const Buffer& to, std::size_t sums) {
  Expected expected{.to = to, .sums = std::vector<PieceDigest>(sums)};
  for (const Piece& piece : pieces) {
    Buffer dense(piece.bytes());
    for (std::size_t i = 0; i < dense.size(); ++i)
      dense[i] =
          piece.from->host_view()[piece.from_offset + i / piece.row_bytes * piece.from_stride +
                                  i % piece.row_bytes];
    if (piece.to != nullptr)
      std::copy(dense.begin(), dense.end(),
                expected.to.begin() + static_cast<std::ptrdiff_t>(piece.to_offset));
    for (std::size_t at = 0; piece.sum != Piece::kNoSum && at < dense.size(); at += kDigestGranule)
      expected.sums[piece.sum] =
          add(expected.sums[piece.sum],
              digest_sum(std::span(dense).subspan(at, std::min(kDigestGranule, dense.size() - at)),
                         piece.position + at));
  }
  return expected;
}

class Kernels : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = make_device({.kind = DeviceKind::kSeparate, .index = DeviceIndex{0}});
    ASSERT_TRUE(made.has_value());
    device_ = std::move(*made);
    from_bytes_.resize(kMemoryBytes);
    to_bytes_.resize(kMemoryBytes);
    for (std::byte& b : from_bytes_) b = static_cast<std::byte>(random_());
    for (std::byte& b : to_bytes_) b = static_cast<std::byte>(random_());
    from_ = std::move(*device_->borrow(from_bytes_));
    to_ = std::move(*device_->borrow(to_bytes_));
    original_ = to_bytes_;
  }
  // Both the kernel and the host's stream are run from the same start, and must do what is
  // expected.
  void check(std::span<const Piece> pieces, std::size_t sums, const std::string& what) {
    const Expected expected = expected_of(pieces, original_, sums);
    std::ranges::copy(original_, to_bytes_.begin());
    const auto table = kernel_table(pieces, kMultiprocessors);
    ASSERT_TRUE(table.has_value()) << what;
    std::vector<KernelSum> kernel_sums(sums);
    run_pieces_on_host(table->pieces.data(), static_cast<std::uint32_t>(table->pieces.size()),
                       table->launch.unit_bytes, table->launch.units, kernel_sums.data());
    for (std::size_t i = 0; i < sums; ++i)
      ASSERT_EQ(sum_of(kernel_sums[i]), expected.sums[i]) << what << ", sum " << i;
    ASSERT_TRUE(to_bytes_ == expected.to) << what;
    std::ranges::copy(original_, to_bytes_.begin());
    std::vector<PieceDigest> host_sums(sums);
    auto stream = *device_->create_stream(StreamRole::kReload);
    auto event = *device_->create_event();
    ASSERT_TRUE(stream->copy_pieces(pieces, host_sums).has_value()) << what;
    ASSERT_TRUE(stream->record(*event).has_value());
    ASSERT_TRUE(event->wait(now() + std::chrono::seconds(60)).has_value());
    ASSERT_EQ(host_sums, expected.sums) << what;
    ASSERT_TRUE(to_bytes_ == expected.to) << what;
  }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  std::mt19937_64 random_{42};
  Buffer from_bytes_, to_bytes_, original_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Memory> from_, to_;
};

std::string text_of(const Piece& piece) {
  return "row_bytes " + std::to_string(piece.row_bytes) + " rows " + std::to_string(piece.rows) +
         " stride " + std::to_string(piece.from_stride) + " from " +
         std::to_string(piece.from_offset) + " to " + std::to_string(piece.to_offset);
}

TEST_F(Kernels, OneRowOfEverySizeAndAlignment) {
  for (const std::uint64_t bytes :
       {1U, 2U, 7U, 15U, 16U, 17U, 511U, 512U, 513U, 2047U, 2048U, 2049U, 4099U, 70'001U})
    for (const std::uint64_t from : {0U, 1U, 2U, 4U, 8U, 48U})
      for (const std::uint64_t to : {0U, 1U, 2U, 4U, 8U, 48U}) {
        const Piece piece{.to = to_.get(),
                          .to_offset = to,
                          .from = from_.get(),
                          .from_offset = from,
                          .row_bytes = bytes,
                          .sum = 0,
                          .position = 32};
        ASSERT_NO_FATAL_FAILURE(check({&piece, 1}, 1, text_of(piece)));
      }
}

TEST_F(Kernels, RowsOfEveryWidthAndStride) {
  for (const std::uint64_t row : {1U, 2U, 3U, 4U, 8U, 12U, 16U, 24U, 48U, 496U, 512U, 528U, 4098U})
    for (const std::uint64_t gap : {0U, 1U, 2U, 4U, 8U, 16U, 4096U})
      for (const std::uint64_t rows : {2U, 3U, 37U, 300U}) {
        const Piece piece{.to = to_.get(),
                          .to_offset = 16,
                          .from = from_.get(),
                          .from_offset = 64,
                          .row_bytes = row,
                          .rows = rows,
                          .from_stride = row + gap,
                          .sum = 0,
                          .position = 0};
        if (64 + rows * piece.from_stride > kMemoryBytes) continue;
        ASSERT_NO_FATAL_FAILURE(check({&piece, 1}, 1, text_of(piece)));
      }
}

// Many pieces of very different sizes, some only digested, some only copied, some of nothing.
TEST_F(Kernels, RandomBatches) {
  for (int round = 0; round < 40; ++round) {
    std::vector<Piece> pieces;
    std::uint64_t to_offset = 0;
    constexpr std::size_t kSums = 3;
    while (pieces.size() < 60) {
      Piece piece{.from = from_.get()};
      const std::uint64_t word = std::uint64_t{1} << below(6);
      piece.row_bytes = below(3) == 0 ? 0 : word * below(below(4) == 0 ? 2000 : 20);
      piece.rows = below(3) == 0 ? 1 : below(50);
      piece.from_stride = piece.row_bytes + word * below(8);
      piece.from_offset = word * below(1000);
      const std::uint64_t reach = piece.from_offset + piece.rows * piece.from_stride;
      to_offset += below(2) == 0 ? (word - to_offset % word) % word : below(5);
      if (reach > kMemoryBytes || to_offset + piece.bytes() > kMemoryBytes) break;
      if (below(5) != 0) {
        piece.to = to_.get();
        piece.to_offset = to_offset;
        to_offset += piece.bytes();
      }
      if (below(4) != 0) {
        piece.sum = static_cast<std::uint32_t>(below(kSums));
        piece.position = kDigestGranule * below(std::uint64_t{1} << 34U);
      }
      pieces.push_back(piece);
    }
    ASSERT_NO_FATAL_FAILURE(check(pieces, kSums, "round " + std::to_string(round)));
  }
}

TEST_F(Kernels, ABatchOfNothingIsNotLaunched) {
  const Piece nothing[] = {{.to = to_.get(), .from = from_.get(), .row_bytes = 0, .rows = 5},
                           {.to = to_.get(), .from = from_.get(), .row_bytes = 5, .rows = 0},
                           {.from = from_.get(), .row_bytes = 16}};
  const auto table = kernel_table(nothing, kMultiprocessors);
  ASSERT_TRUE(table.has_value());
  EXPECT_TRUE(table->pieces.empty());
  EXPECT_EQ(table->launch.units, 0U);
  EXPECT_EQ(table->launch.blocks, 0U);
}

TEST_F(Kernels, RowsWithoutGapsAreOneRow) {
  const Piece piece{
      .to = to_.get(), .from = from_.get(), .row_bytes = 24, .rows = 100, .from_stride = 24};
  const auto table = kernel_table({&piece, 1}, kMultiprocessors);
  ASSERT_EQ(table->pieces.size(), 1U);
  EXPECT_EQ(table->pieces[0].rows, 1U);
  EXPECT_EQ(table->pieces[0].row_bytes, 2400U);
}

TEST_F(Kernels, EveryUnitBelongsToThePieceThatItIsOf) {
  std::vector<Piece> pieces;
  for (std::uint64_t bytes : {1U, 2048U, 2049U, 100'000U, 1U, 1'000'000U})
    pieces.push_back({.to = to_.get(), .from = from_.get(), .row_bytes = bytes});
  const auto table = kernel_table(pieces, 1);
  std::uint64_t unit = 0;
  for (std::uint32_t i = 0; i < table->pieces.size(); ++i) {
    EXPECT_EQ(table->pieces[i].first_unit, unit);
    const auto units = units_of(pieces[i].bytes(), table->launch.unit_bytes);
    EXPECT_GE(units, 1U);
    for (std::uint64_t k = 0; k < units; ++k, ++unit)
      ASSERT_EQ(piece_of(table->pieces.data(), 6, unit), i);
  }
  EXPECT_EQ(table->launch.units, unit);
  EXPECT_EQ(table->launch.blocks, (unit + kWarpsPerBlock - 1) / kWarpsPerBlock);
}

TEST_F(Kernels, ReadingReadsEveryGranuleOnce) {
  for (const std::size_t granules : {0U, 1U, 31U, 33U, 127U, 128U, 129U, 2048U, 2049U, 40'000U}) {
    unsigned long long expected = 5;
    for (std::size_t i = 0; i < granules; ++i) {
      std::uint64_t words[2];
      std::memcpy(words, from_bytes_.data() + i * kGranuleBytes, sizeof words);
      expected ^= words[0] ^ words[1];
    }
    unsigned long long folded = 5;
    read_bytes_on_host(from_bytes_.data(), granules, &folded);
    EXPECT_EQ(folded, expected) << granules;
  }
}

TEST(KernelLaunch, UnitsAreSmallForSmallBatchesAndLargeForLargeOnes) {
  EXPECT_EQ(choose_unit_bytes(1, kMultiprocessors), kUnitBytesMin);
  EXPECT_EQ(choose_unit_bytes(limits::kMiB, kMultiprocessors), kUnitBytesMin);
  EXPECT_EQ(choose_unit_bytes(2 * limits::kGiB, kMultiprocessors), kUnitBytesMax);
  EXPECT_EQ(choose_unit_bytes(2 * limits::kGiB, 1), kUnitBytesMax);
  // Units are a power of two times the least, so they begin at granules and keep their alignment.
  for (std::uint64_t bytes = 1; bytes < 4 * limits::kGiB; bytes = bytes * 3 + 1) {
    const std::uint64_t unit = choose_unit_bytes(bytes, kMultiprocessors);
    EXPECT_EQ(unit & (unit - 1), 0U) << bytes;
    EXPECT_GE(unit, kUnitBytesMin);
    EXPECT_LE(unit, kUnitBytesMax);
  }
  EXPECT_LE(units_of(limits::kBucketBytesMax, kUnitBytesMax), kUnitsMax);
}

TEST(KernelSums, CarryOverAllLimbs) {
  KernelSum sum;
  PieceDigest expected;
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const LaneSum lane{.low = random() | 0xffffffff00000000U, .high = random()};
    for (std::uint32_t limb = 0; limb < 4; ++limb) sum.limbs[limb] += limb_of(lane, limb);
    expected = add(expected, {.low = lane.low, .high = lane.high});
  }
  EXPECT_EQ(sum_of(sum), expected);
  // The most that kUnitsMax units of 32 lanes can add: limbs that are nearly full, mod 2^128.
  const std::uint64_t max = 32 * kUnitsMax * 0xffffffffU;
  sum = {{max, max, max, max}};
  PieceDigest sum_of_all_ones;  // 2^32 * (2^128 - 1) = -2^32
  sum_of_all_ones = {.low = 0 - (std::uint64_t{1} << 32U), .high = ~std::uint64_t{0}};
  EXPECT_EQ(sum_of(sum), sum_of_all_ones);
}

}  // namespace
}  // namespace wsync::device::cuda
