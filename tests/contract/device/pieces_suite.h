// What every device backend promises of batches with sums, of events between processes and of
// borrowed memory. More of the suite in device_suite.h, for the same instantiations.
#pragma once

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "shared/base/units.h"
#include "tests/contract/device/device_suite.h"
#include "tests/support/bytes.h"

namespace wsync::device {

// The bytes that a piece copies and counts, one behind the other.
inline Bytes dense(const Piece& piece, const Bytes& from) {
  Bytes bytes(piece.bytes());
  for (std::uint64_t row = 0; !bytes.empty() && row < piece.rows; ++row)
    std::memcpy(bytes.data() + row * piece.row_bytes,
                from.data() + piece.from_offset + row * piece.from_stride, piece.row_bytes);
  return bytes;
}

// What becomes of them by a conversion to or from BF16, which only moves the upper half of an F32
// whose lower half is zero.
inline Bytes converted(const Bytes& bytes, const FloatCast& cast) {
  if (cast.is_none()) return bytes;
  Bytes out;
  const std::size_t size = float_bytes(cast.from);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    const bool widens = size == 2;
    if (widens) out.insert(out.end(), 2, std::byte{0});
    out.insert(out.end(), {bytes[at + (widens ? 0 : 2)], bytes[at + (widens ? 1 : 3)]});
  }
  return out;
}

// Their sum, row by row.
inline SplitSum sum_of_rows(const Piece& piece, const Bytes& from) {
  const bool is_one_row = piece.from_stride == piece.row_bytes;
  const std::uint64_t row_bytes = is_one_row ? piece.bytes() : piece.row_bytes;
  SplitSum sum;
  for (std::uint64_t row = 0; row < (is_one_row ? 1 : piece.rows); ++row) {
    RangePlace place = piece.place;
    place.position += row * piece.from_stride;
    sum += split_sum(
        std::span(from).subspan(piece.from_offset + row * piece.from_stride, row_bytes), place);
  }
  return sum;
}

class PieceContract : public DeviceContract {
 protected:
  static constexpr std::uint64_t kPart = 128 * limits::kKiB;
  static constexpr std::uint64_t kBytes = 3 * kPart;

  void SetUp() override {
    DeviceContract::SetUp();
    if (device_ == nullptr) return;
    from_ = memory(kBytes);
    to_ = memory(kBytes);
    work_ = stream(StreamRole::kReload);
    source_ = pattern(kBytes, 11);
    target_ = pattern(kBytes, 12);
    ASSERT_TRUE(work_->copy_to_device(whole(*from_), source_));
    ASSERT_TRUE(work_->copy_to_device(whole(*to_), target_));
    ASSERT_TRUE(drain(*work_));
  }
  Piece piece(std::uint64_t from, std::uint64_t bytes, std::uint64_t to) {
    return {.to = to_.get(),
            .to_offset = to,
            .from = from_.get(),
            .from_offset = from,
            .row_bytes = bytes,
            .place = {.seed = 3, .position = 0, .tensor_bytes = kBytes}};
  }
  // Runs the batch and compares every byte of the target and every sum with what they must be.
  void expect_batch(const std::vector<Piece>& pieces, std::size_t sums) {
    std::vector<SplitSum> expected(sums);
    for (const Piece& one : pieces) {
      const auto bytes = dense(one, source_);
      if (one.to != nullptr)
        std::ranges::copy(converted(bytes, one.cast), target_.begin() + to_offset(one));
      if (one.sum != Piece::kNoSum && !bytes.empty())
        expected[one.sum] += sum_of_rows(one, source_);
    }
    std::vector<SplitSum> found(sums, SplitSum{.words = {.product = 1, .sum = 2}, .edges = {}});
    Bytes back(kBytes);
    ASSERT_TRUE(work_->copy_pieces(pieces, found));
    ASSERT_TRUE(work_->copy_to_host(back, whole(*to_)));
    const auto drained = drain(*work_);
    ASSERT_TRUE(drained.has_value()) << drained.error().message();
    EXPECT_TRUE(back == target_) << "first difference at byte "
                                 << std::ranges::mismatch(back, target_).in1 - back.begin();
    EXPECT_EQ(found, expected);
  }
  static std::ptrdiff_t to_offset(const Piece& piece) {
    return static_cast<std::ptrdiff_t>(piece.to_offset);
  }

  Bytes source_;
  Bytes target_;
  std::unique_ptr<Memory> from_;
  std::unique_ptr<Memory> to_;
  std::unique_ptr<Stream> work_;  // last: it is closed before what its work uses goes
};

TEST_P(PieceContract, OneBatchCopiesAndCountsAllItsPieces) {
  std::vector<Piece> batch;
  batch.push_back(piece(0, kPart, 256));  // aligned
  batch.back().sum = 0;
  batch.push_back(piece(kPart + 3, 4096 + 7, kPart + 1024));  // misaligned, the end
  batch.back().sum = 0;
  batch.back().place.position = kPart + 5;
  batch.push_back(piece(2 * kPart, 1000, 2 * kPart + 5));  // copied only
  batch.push_back(piece(17, 160, 0));                      // counted only
  batch.back().to = nullptr;
  batch.back().sum = 2;
  expect_batch(batch, 3);  // nothing counts into the sum in the middle
}

TEST_P(PieceContract, RowsAreGatheredFromTheirStrides) {
  std::vector<Piece> batch;
  batch.push_back(piece(64, 48, 0));  // whole granules in each row
  batch.back().rows = 100;
  batch.back().from_stride = 256;
  batch.back().sum = 0;
  batch.push_back(piece(kPart + 1, 10, kPart));  // granules over the ends of rows
  batch.back().rows = 1000;
  batch.back().from_stride = 33;
  batch.back().sum = 1;
  batch.push_back(piece(2 * kPart, 2, 2 * kPart));  // columns of a bf16 matrix
  batch.back().rows = 199;
  batch.back().from_stride = 512;
  batch.back().sum = 2;
  batch.push_back(piece(2 * kPart, 64, 2 * kPart + 4096));  // rows without gaps
  batch.back().rows = 16;
  batch.back().from_stride = 64;
  batch.back().sum = 3;
  expect_batch(batch, 4);
}

TEST_P(PieceContract, ElementsAreConvertedWhileTheyAreCopied) {
  // Halves in the first part, whose widened values are narrowed again from the last part.
  std::vector<Piece> batch;
  batch.push_back(piece(0, kPart / 4, 256));
  batch.back().cast = {.from = FloatFormat::kBF16, .to = FloatFormat::kF32};
  batch.back().sum = 0;
  batch.push_back(piece(2, 38, kPart + 4));  // less aligned
  batch.back().cast = {.from = FloatFormat::kBF16, .to = FloatFormat::kF32};
  batch.back().rows = 50;
  batch.back().from_stride = 74;
  batch.back().sum = 1;
  expect_batch(batch, 2);
  Bytes floats = converted(Bytes(source_.begin(), source_.begin() + kPart / 2),
                           {.from = FloatFormat::kBF16, .to = FloatFormat::kF32});
  std::ranges::copy(floats, source_.begin());
  ASSERT_TRUE(work_->copy_to_device(whole(*from_), source_));
  ASSERT_TRUE(drain(*work_));
  for (std::size_t at = 0; at < floats.size(); at += 4) {
    // A NaN is made quiet, which changes it.
    const auto upper = std::to_integer<unsigned>(source_[at + 3]) << 8U |
                       std::to_integer<unsigned>(source_[at + 2]);
    if ((upper & 0x7f80U) == 0x7f80U) source_[at + 3] = std::byte{0};
  }
  ASSERT_TRUE(work_->copy_to_device(whole(*from_), source_));
  batch = {piece(0, kPart, 1024)};
  batch.back().cast = {.from = FloatFormat::kF32, .to = FloatFormat::kBF16};
  batch.back().sum = 0;
  expect_batch(batch, 1);
}

TEST_P(PieceContract, AConversionOfPartsOfElementsIsRefused) {
  std::vector<SplitSum> sums(1);
  const auto refused = [&](auto change) {
    Piece bad = piece(0, 64, 0);
    bad.rows = 2;
    bad.from_stride = 128;
    bad.cast = {.from = FloatFormat::kF32, .to = FloatFormat::kF16};
    EXPECT_TRUE(work_->copy_pieces(std::span(&bad, 1), sums));
    change(bad);
    const auto result = work_->copy_pieces(std::span(&bad, 1), sums);
    return !result && result.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(refused([](Piece& bad) { bad.row_bytes = 62; }));
  EXPECT_TRUE(refused([](Piece& bad) { bad.from_stride = 130; }));
  EXPECT_TRUE(refused([](Piece& bad) { bad.from_offset = 2; }));
  EXPECT_TRUE(refused([](Piece& bad) { bad.to_offset = 1; }));
  EXPECT_TRUE(refused([](Piece& bad) { bad.cast.from = FloatFormat::kF8E4M3; }));
  EXPECT_TRUE(refused([](Piece& bad) {  // what is written is twice as long
    bad.cast = {.from = FloatFormat::kBF16, .to = FloatFormat::kF32};
    bad.to_offset = kBytes - 132;
  }));
  ASSERT_TRUE(drain(*work_));
}

TEST_P(PieceContract, TheSumOfThePartsIsThatOfTheWhole) {
  std::vector<Piece> batch;
  for (std::uint64_t at = 0; at < 100'000; at += 16'000) {
    batch.push_back(piece(5 + at, std::min<std::uint64_t>(16'000, 100'000 - at), at));
    batch.back().sum = 0;
    batch.back().place = {.seed = 3, .position = at, .tensor_bytes = 100'000};
  }
  std::ranges::reverse(batch);
  std::vector<SplitSum> sums(1);
  ASSERT_TRUE(work_->copy_pieces(batch, sums));
  ASSERT_TRUE(drain(*work_));
  EXPECT_EQ(sums[0], split_sum(std::span(source_).subspan(5, 100'000),
                               {.seed = 3, .position = 0, .tensor_bytes = 100'000}));
}

TEST_P(PieceContract, BatchesBehindEachOtherKeepTheirSums) {
  std::vector<std::vector<SplitSum>> sums(5, std::vector<SplitSum>(3));
  for (std::uint64_t turn = 0; turn < sums.size(); ++turn) {
    // Of growing size, so that what a backend keeps between batches has to grow with them.
    std::vector<Piece> batch;
    for (std::uint64_t i = 0; i < 1 + 700 * turn; ++i) {
      batch.push_back(piece(turn * 1000 + i * 16, 16, i * 16));
      batch.back().sum = static_cast<std::uint32_t>(i % 3);
      batch.back().place.position = i * 16;
    }
    ASSERT_TRUE(work_->copy_pieces(batch, sums[turn]));
  }
  ASSERT_TRUE(drain(*work_));
  for (std::uint64_t turn = 0; turn < sums.size(); ++turn) {
    std::vector<SplitSum> expected(3);
    for (std::uint64_t i = 0; i < 1 + 700 * turn; ++i)
      expected[i % 3] += split_sum(std::span(source_).subspan(turn * 1000 + i * 16, 16),
                                   {.seed = 3, .position = i * 16, .tensor_bytes = kBytes});
    EXPECT_EQ(sums[turn], expected) << "batch " << turn;
  }
}

TEST_P(PieceContract, BatchesWithoutBytesAreDoneAndTheirSumsZero) {
  expect_batch({}, 0);
  expect_batch({}, 2);
  auto empty = piece(0, 0, 0);
  empty.sum = 1;
  auto no_rows = piece(0, 16, 0);
  no_rows.rows = 0;
  no_rows.sum = 0;
  expect_batch({empty, no_rows}, 2);
}

TEST_P(PieceContract, PiecesOutsideTheirMemoryAreRefused) {
  std::vector<SplitSum> sums(1);
  const auto refused = [&](Piece bad) {
    const auto result = work_->copy_pieces(std::span(&bad, 1), sums);
    return !result && result.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(refused(piece(1, kBytes, 0)));
  EXPECT_TRUE(refused(piece(0, kBytes, 1)));
  EXPECT_TRUE(refused(piece(~0ULL, 16, 0)));
  auto rows = piece(0, 16, 0);
  rows.rows = kBytes / 32 + 1;
  rows.from_stride = 32;
  EXPECT_TRUE(refused(rows));
  rows.rows = 2;
  rows.from_stride = 8;
  EXPECT_TRUE(refused(rows)) << "rows over each other";
  rows.from_stride = ~0ULL;
  EXPECT_TRUE(refused(rows));
  auto no_sum = piece(0, 16, 0);
  no_sum.sum = 1;
  EXPECT_TRUE(refused(no_sum));
  auto behind_its_tensor = piece(0, 16, 0);
  behind_its_tensor.sum = 0;
  behind_its_tensor.place.position = kBytes - 15;
  EXPECT_TRUE(refused(behind_its_tensor));
  behind_its_tensor.place.position = ~0ULL;
  EXPECT_TRUE(refused(behind_its_tensor));
  auto from_nowhere = piece(0, 16, 0);
  from_nowhere.from = nullptr;
  EXPECT_TRUE(refused(from_nowhere));
  auto imported = device_->import_memory(std::move(*to_->export_handle()));
  ASSERT_TRUE(imported.has_value()) << imported.error().message();
  auto read_only = piece(0, 16, 0);
  read_only.to = imported->get();
  EXPECT_TRUE(refused(read_only));
  EXPECT_TRUE(work_->status().has_value()) << "a refused call must not break the stream";
  EXPECT_TRUE(drain(*work_));
}

// What an engine does: the sidecar's buffer, mapped, into memory that the engine has allocated.
TEST_P(PieceContract, AnImporterReadsWhatItIsToldOfIntoItsOwnMemory) {
  auto imported = device_->import_memory(std::move(*from_->export_handle()));
  ASSERT_TRUE(imported.has_value()) << imported.error().message();
  auto weights = device_->borrow({to_->address() + 4096, 8192});
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  EXPECT_TRUE((*weights)->writable());
  EXPECT_EQ((*weights)->bytes(), 8192U);
  EXPECT_EQ((*weights)->export_handle().error().code(), ErrorCode::kRefused);
  auto engine = stream(StreamRole::kReload);
  std::vector<SplitSum> sums(1);
  for (unsigned round = 0; round < 3; ++round) {  // through the same mapping
    const auto bucket = pattern(kBytes, 20 + round);
    ASSERT_TRUE(work_->copy_to_device(whole(*from_), bucket));
    ASSERT_TRUE(drain(*work_));  // then comes the message that tells the engine
    const Piece part{.to = weights->get(),
                     .from = imported->get(),
                     .from_offset = 100,
                     .row_bytes = 8192,
                     .sum = 0,
                     .place = {.seed = 3, .position = 0, .tensor_bytes = 8192}};
    ASSERT_TRUE(engine->copy_pieces(std::span(&part, 1), sums));
    Bytes back(8192);
    ASSERT_TRUE(engine->copy_to_host(back, whole(**weights)));
    ASSERT_TRUE(drain(*engine));
    EXPECT_TRUE(same_bytes(back, std::span(bucket).subspan(100, 8192)));
    EXPECT_EQ(sums[0], split_sum(back, {.seed = 3, .position = 0, .tensor_bytes = 8192}));
  }
}

TEST_P(PieceContract, ImportedMemoryIsNotWritten) {
  auto imported = device_->import_memory(std::move(*from_->export_handle()));
  ASSERT_TRUE(imported.has_value()) << imported.error().message();
  EXPECT_FALSE((*imported)->writable());
  const Piece piece{.to = imported->get(), .from = to_.get(), .row_bytes = 100};
  EXPECT_EQ(work_->copy_pieces(std::span(&piece, 1), {}).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(work_->copy_to_device(whole(**imported), source_).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(work_->copy_on_device(whole(**imported), whole(*from_)).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ((*imported)->export_handle().error().code(), ErrorCode::kRefused);
  EXPECT_TRUE(work_->status().has_value());
}

// A communicator's work: in the stream's order, with a copy that is done when it returns.
TEST_P(PieceContract, WorkOfACommunicatorTakesItsTurn) {
  auto mid = memory(kBytes);
  Bytes back(kBytes);
  ASSERT_TRUE(work_->run(
      [&](StreamTurn& turn) { return turn.copy(mid->address(), from_->address(), kBytes); }));
  ASSERT_TRUE(work_->copy_to_host(back, whole(*mid)));
  ASSERT_TRUE(drain(*work_));
  EXPECT_TRUE(back == source_);
  ASSERT_TRUE(work_->run([](StreamTurn&) { return fail(ErrorCode::kPeerLost, "a rank is gone"); }));
  const auto after = drain(*work_);
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code(), ErrorCode::kPeerLost);
  EXPECT_FALSE(work_->status());
}

}  // namespace wsync::device
