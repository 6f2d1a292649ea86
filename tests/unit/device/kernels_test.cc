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
#include "shared/weights/cast.h"

namespace wsync::device::cuda {
namespace {

constexpr std::uint64_t kMemoryBytes = limits::kMiB;
constexpr std::uint32_t kMultiprocessors = 132;

using Buffer = std::vector<std::byte>;

// What a batch must leave behind, byte by byte and row by row.
struct Expected {
  Buffer to;
  std::vector<SplitSum> sums;
};

// The sum of one row by its definition (word_sum.h, split_sum.h), byte by byte.
SplitSum sum_of_row(std::span<const std::byte> row, const RangePlace& place) {
  static constexpr SumKeys kKeys = make_sum_keys();
  const std::uint64_t end = place.position + row.size();
  SplitSum sum;
  for (std::uint64_t word = place.position / 8; word * 8 < end; ++word) {
    std::uint64_t value = 0;
    for (std::uint64_t at = std::max(word * 8, place.position); at < std::min(word * 8 + 8, end);
         ++at)
      value |= std::uint64_t{static_cast<std::uint8_t>(row[at - place.position])} << (at % 8 * 8);
    const bool is_whole =
        word * 8 >= place.position && (word * 8 + 8 <= end || end == place.tensor_bytes);
    WordSum& part = is_whole ? sum.words : sum.edges;
    part.product +=
        keyed_product(value, kKeys.words[word % 512]) * sum_factor(place.seed, word / 512);
    part.sum += value;
  }
  return sum;
}

// What becomes of elements by cast(), whose own tests know every value of 16 bits.
Buffer converted_of(const Buffer& bytes, const FloatCast& by) {
  if (by.is_none()) return bytes;
  const auto dtype = [](FloatFormat format) {
    constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3};
    return kDTypes[static_cast<std::size_t>(format)];
  };
  Buffer out(by.converted(bytes.size()));
  cast(dtype(by.from), bytes, dtype(by.to), out);
  return out;
}

Expected expected_of(std::span<const Piece> pieces, const Buffer& to, std::size_t sums) {
  Expected expected{.to = to, .sums = std::vector<SplitSum>(sums)};
  for (const Piece& piece : pieces) {
    Buffer dense(piece.bytes());
    for (std::size_t i = 0; i < dense.size(); ++i)
      dense[i] =
          piece.from->host_view()[piece.from_offset + i / piece.row_bytes * piece.from_stride +
                                  i % piece.row_bytes];
    if (piece.to != nullptr) {
      const Buffer written = converted_of(dense, piece.cast);
      std::copy(written.begin(), written.end(),
                expected.to.begin() + static_cast<std::ptrdiff_t>(piece.to_offset));
    }
    if (piece.sum == Piece::kNoSum || dense.empty()) continue;
    const bool is_one_row = piece.from_stride == piece.row_bytes;
    const std::uint64_t row_bytes = is_one_row ? dense.size() : piece.row_bytes;
    for (std::uint64_t row = 0; row * row_bytes < dense.size(); ++row) {
      RangePlace place = piece.place;
      place.position += row * piece.from_stride;
      expected.sums[piece.sum] +=
          sum_of_row(std::span(dense).subspan(row * row_bytes, row_bytes), place);
    }
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
    std::vector<SplitSum> host_sums(sums);
    auto stream = *device_->create_stream(StreamRole::kReload);
    auto event = *device_->create_event();
    ASSERT_TRUE(stream->copy_pieces(pieces, host_sums).has_value()) << what;
    ASSERT_TRUE(stream->record(*event).has_value());
    ASSERT_TRUE(event->wait(now() + std::chrono::seconds(60)).has_value());
    ASSERT_EQ(host_sums, expected.sums) << what;
    ASSERT_TRUE(to_bytes_ == expected.to) << what;
  }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  // The place of a piece in a tensor that ends with it, or goes on behind it.
  RangePlace place_of(const Piece& piece, std::uint64_t position, bool ends) {
    const std::uint64_t reach = (piece.rows - 1) * piece.from_stride + piece.row_bytes;
    return {.seed = random_(),
            .position = position,
            .tensor_bytes = position + reach + (ends ? 0 : 1 + below(20))};
  }

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

TEST_F(Kernels, OneRowOfEverySizeAlignmentAndPosition) {
  for (const std::uint64_t bytes :
       {1U, 2U, 7U, 15U, 16U, 17U, 511U, 512U, 513U, 2047U, 2048U, 2049U, 4099U, 70'001U})
    for (const std::uint64_t from : {0U, 1U, 2U, 4U, 8U, 48U})
      for (const std::uint64_t to : {0U, 1U, 4U, 8U, 48U})
        for (const std::uint64_t position : {0U, 3U, 8U, 32U, 4095U, 40'960U}) {
          Piece piece{.to = to_.get(),
                      .to_offset = to,
                      .from = from_.get(),
                      .from_offset = from,
                      .row_bytes = bytes,
                      .sum = 0};
          piece.place = place_of(piece, position, (bytes + position) % 2 == 0);
          ASSERT_NO_FATAL_FAILURE(
              check({&piece, 1}, 1, text_of(piece) + " position " + std::to_string(position)));
        }
}

TEST_F(Kernels, RowsOfEveryWidthAndStride) {
  for (const std::uint64_t row :
       {1U, 2U, 3U, 4U, 8U, 12U, 16U, 24U, 48U, 496U, 512U, 528U, 2048U, 2064U, 4098U, 4112U})
    for (const std::uint64_t gap : {0U, 1U, 2U, 4U, 8U, 16U, 4096U})
      for (const std::uint64_t rows : {2U, 3U, 37U, 300U})
        for (const std::uint64_t position : {0U, 16U, 21U}) {
          Piece piece{.to = to_.get(),
                      .to_offset = 16,
                      .from = from_.get(),
                      .from_offset = 64,
                      .row_bytes = row,
                      .rows = rows,
                      .from_stride = row + gap,
                      .sum = 0};
          if (64 + rows * piece.from_stride > kMemoryBytes) continue;
          piece.place = place_of(piece, position, rows % 2 == 0);
          ASSERT_NO_FATAL_FAILURE(check({&piece, 1}, 1, text_of(piece)));
        }
}

constexpr FloatFormat kSources[] = {FloatFormat::kF32, FloatFormat::kF16, FloatFormat::kBF16};
constexpr FloatFormat kTargets[] = {FloatFormat::kF32, FloatFormat::kF16, FloatFormat::kBF16,
                                    FloatFormat::kF8E4M3};

TEST_F(Kernels, ElementsAreConvertedAndTheBytesBeforeAreSummed) {
  for (const FloatFormat from : kSources)
    for (const FloatFormat to : kTargets)
      for (const std::uint64_t elements : {1U, 3U, 4U, 8U, 31U, 512U, 515U, 4096U, 20'003U})
        for (const std::uint64_t shift : {0U, 1U, 2U, 4U, 8U})
          for (const std::uint64_t rows : {1U, 3U}) {
            const std::uint64_t size = float_bytes(from);
            Piece piece{.to = to_.get(),
                        .to_offset = 64 + shift * float_bytes(to),
                        .from = from_.get(),
                        .from_offset = 64 + (elements % 2 == 0 ? 0 : shift * size),
                        .row_bytes = elements * size,
                        .rows = rows,
                        .from_stride = elements * size + (shift + 8) % 16 * size,
                        .sum = shift == 8 ? Piece::kNoSum : 0,
                        .cast = {.from = from, .to = to}};
            piece.place = place_of(piece, 16 * shift, elements % 3 == 0);
            ASSERT_NO_FATAL_FAILURE(check({&piece, 1}, 1,
                                          text_of(piece) + " from format " +
                                              std::to_string(static_cast<int>(from)) + " to " +
                                              std::to_string(static_cast<int>(to))));
          }
}

// The parts of a tensor that two ranks hold, by rows or by columns, and what a bucket ends.
TEST_F(Kernels, TheSumsOfThePartsAreTheSumOfTheTensor) {
  for (const std::uint64_t columns : {8U, 64U, 1000U, 4096U}) {
    const std::uint64_t row_bytes = 2 * columns;
    const std::uint64_t bytes = 50 * row_bytes;
    const RangePlace whole{.seed = 9, .position = 0, .tensor_bytes = bytes};
    std::vector<Piece> pieces;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      pieces.push_back(
          {.from = from_.get(),
           .from_offset = rank * row_bytes / 2,
           .row_bytes = row_bytes / 2,
           .rows = 50,
           .from_stride = row_bytes,
           .sum = rank,
           .place = {.seed = 9, .position = rank * row_bytes / 2, .tensor_bytes = bytes}});
    const auto table = kernel_table(pieces, kMultiprocessors);
    std::vector<KernelSum> sums(2);
    run_pieces_on_host(table->pieces.data(), 2, table->launch.unit_bytes, table->launch.units,
                       sums.data());
    SplitSum both = sum_of(sums[0]);
    both += sum_of(sums[1]);
    EXPECT_EQ(both, split_sum(std::span(from_bytes_).first(bytes), whole)) << columns;
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
        if (piece.bytes() > 0)
          piece.place = place_of(piece, word * below(std::uint64_t{1} << 34U), below(2) == 0);
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

}  // namespace
}  // namespace wsync::device::cuda
