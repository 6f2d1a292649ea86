#include "trainer_side/publish/gathered_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/stream_copy.h"

namespace wsync::publish {
namespace {

using ::testing::HasSubstr;
using Memory = std::vector<std::byte>;

Memory random_bytes(std::size_t n) {
  std::mt19937 random(static_cast<std::uint32_t>(n));
  Memory bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// What a rank's memory holds when the tensor is cut: columns [begin, begin + length) of each row.
Memory cut(const Memory& whole, std::size_t row_bytes, std::size_t begin, std::size_t length) {
  Memory shard;
  for (std::size_t row = 0; row < whole.size(); row += row_bytes)
    shard.insert(shard.end(), whole.begin() + static_cast<std::ptrdiff_t>(row + begin),
                 whole.begin() + static_cast<std::ptrdiff_t>(row + begin + length));
  return shard;
}

RankTensor part(const TensorInfo& info, std::optional<ShardRange> range, const Memory& memory) {
  return {.info = info, .range = range, .bytes = std::span<const std::byte>(memory)};
}

// Reads a tensor in pieces of an odd size, so that they cross rows and shards.
Memory read_all(GatheredSource& source, const std::string& name) {
  const std::uint32_t index = *source.manifest()->find(name);
  Memory found(source.manifest()->byte_size(index));
  for (std::size_t at = 0; at < found.size(); at += 37) {
    const std::size_t n = std::min<std::size_t>(37, found.size() - at);
    EXPECT_TRUE(source.read(index, at, std::span(found).subspan(at, n)).has_value());
  }
  // The same bytes with their sum, in one piece.
  const SumPlace place{.seed = seed_of(name)};
  Memory summed(found.size());
  const auto sum = source.read_sum(index, place, summed);
  EXPECT_TRUE(sum.has_value() && *sum == word_sum(found, place)) << name;
  EXPECT_EQ(summed, found) << name;
  return found;
}

TEST(GatheredSource, ShardsOfEveryDimensionComeTogether) {
  const TensorInfo rows{.name = "rows", .dtype = DType::kBF16, .shape = {6, 5}};
  const TensorInfo columns{.name = "columns", .dtype = DType::kF32, .shape = {4, 9}};
  const TensorInfo middle{.name = "middle", .dtype = DType::kU8, .shape = {3, 4, 5}};
  const TensorInfo same{.name = "same", .dtype = DType::kF32, .shape = {7}};
  const TensorInfo alone{.name = "alone", .dtype = DType::kU8, .shape = {3}};
  const TensorInfo none{.name = "none", .dtype = DType::kU8, .shape = {0, 2}};
  const Memory rows_bytes = random_bytes(60);
  const Memory columns_bytes = random_bytes(144);
  const Memory middle_bytes = random_bytes(61);
  const Memory middle_whole(middle_bytes.begin(), middle_bytes.begin() + 60);
  const Memory same_bytes = random_bytes(28);
  const Memory alone_bytes = random_bytes(3);
  const Memory empty;
  const Memory rows_0 = cut(rows_bytes, 60, 0, 20);
  const Memory rows_1 = cut(rows_bytes, 60, 20, 40);
  const Memory columns_0 = cut(columns_bytes, 36, 0, 12);
  const Memory columns_1 = cut(columns_bytes, 36, 12, 24);
  const Memory middle_0 = cut(middle_whole, 20, 0, 15);
  const Memory middle_1 = cut(middle_whole, 20, 15, 5);
  auto source = GatheredSource::create(
      {{part(rows, ShardRange{0, 0, 2}, rows_0), part(columns, ShardRange{1, 0, 3}, columns_0),
        part(middle, ShardRange{1, 0, 3}, middle_0), part(same, {}, same_bytes),
        part(none, {}, empty)},
       {part(rows, ShardRange{0, 2, 4}, rows_1), part(columns, ShardRange{1, 3, 6}, columns_1),
        part(middle, ShardRange{1, 3, 1}, middle_1), part(same, {}, same_bytes),
        part(alone, {}, alone_bytes)}});
  ASSERT_TRUE(source.has_value()) << source.error().message();
  EXPECT_EQ(source->manifest()->size(), 6U);
  EXPECT_EQ(read_all(*source, "rows"), rows_bytes);
  EXPECT_EQ(read_all(*source, "columns"), columns_bytes);
  EXPECT_EQ(read_all(*source, "middle"), middle_whole);
  EXPECT_EQ(read_all(*source, "same"), same_bytes);
  EXPECT_EQ(read_all(*source, "alone"), alone_bytes);
}

// Ranks whose parts are whole words are copied and summed in one loop.
TEST(GatheredSource, PartsOfWholeWordsAreSummedWhileTheyAreCopied) {
  const TensorInfo info{.name = "words", .dtype = DType::kF32, .shape = {300, 32}};
  const Memory whole = random_bytes(300 * 128);
  const Memory first = cut(whole, 128, 0, 40);
  const Memory second = cut(whole, 128, 40, 88);
  auto source = GatheredSource::create(
      {{part(info, ShardRange{1, 0, 10}, first)}, {part(info, ShardRange{1, 10, 22}, second)}});
  ASSERT_TRUE(source.has_value()) << source.error().message();
  EXPECT_EQ(read_all(*source, "words"), whole);
}

TEST(GatheredSource, CallbackOfARankIsReadAndItsErrorNamesTheRank) {
  const TensorInfo info{.name = "w", .dtype = DType::kU8, .shape = {2, 4}};
  const Memory left(4);
  auto source = GatheredSource::create(
      {{part(info, ShardRange{1, 0, 2}, left)},
       {{.info = info,
         .range = ShardRange{1, 2, 2},
         .bytes = ReadTensor([](std::uint64_t offset, std::span<std::byte> into) -> Result<> {
           if (offset >= 2) return fail(ErrorCode::kIo, "device gone");
           std::ranges::fill(into, std::byte{9});
           return {};
         })}}});
  ASSERT_TRUE(source.has_value()) << source.error().message();
  Memory row(4);
  ASSERT_TRUE(source->read(0, 0, row).has_value());
  EXPECT_EQ(row[3], std::byte{9});
  EXPECT_EQ(source->read(0, 4, row).error().message(), "w, rank 1: device gone");
}

TEST(GatheredSource, RangesThatDoNotMakeATensorAreRefusedByName) {
  const TensorInfo info{.name = "w", .dtype = DType::kU8, .shape = {4, 4}};
  const Memory half(8);
  const Memory quarter(4);
  const auto refusal = [&](std::vector<RankTensor> first, std::vector<RankTensor> second) {
    const auto source = GatheredSource::create({std::move(first), std::move(second)});
    return source ? std::string("accepted") : source.error().message();
  };
  const auto first = part(info, ShardRange{0, 0, 2}, half);
  EXPECT_THAT(refusal({first}, {}),
              HasSubstr("tensor w U8 [4, 4]: no rank gives [2, 4) of dimension 0: rank 0 [0, 2)"));
  EXPECT_THAT(refusal({first}, {first}),
              HasSubstr("no rank gives [2, 4) of dimension 0: rank 0 [0, 2), rank 1 [0, 2)"));
  EXPECT_THAT(
      refusal({first}, {part(info, ShardRange{0, 1, 2}, half)}),
      HasSubstr("tensor w U8 [4, 4], rank 1: its range [1, 3) of dimension 0 overlaps [0, 2) "
                "of rank 0"));
  EXPECT_THAT(refusal({first}, {part(info, ShardRange{0, 3, 1}, quarter)}),
              HasSubstr("no rank gives [2, 3) of dimension 0: rank 0 [0, 2), rank 1 [3, 4)"));
  EXPECT_THAT(refusal({first}, {part(info, ShardRange{1, 2, 2}, half)}),
              HasSubstr("another rank cuts along 0"));
  EXPECT_THAT(refusal({first}, {part(info, ShardRange{0, 2, 2}, quarter)}),
              HasSubstr("it has 4 bytes in memory, but its range needs 8"));
  EXPECT_THAT(refusal({first}, {part(info, ShardRange{0, 2, 3}, half)}), HasSubstr("outside of"));
  EXPECT_THAT(refusal({first}, {part(info, ShardRange{2, 0, 1}, half)}),
              HasSubstr("another rank cuts along 0"));
  EXPECT_THAT(refusal({part(info, ShardRange{2, 0, 1}, half)}, {}), HasSubstr("no dimension 2"));
  EXPECT_THAT(refusal({first, first}, {}), HasSubstr("given twice"));
  TensorInfo other = info;
  other.dtype = DType::kI8;
  EXPECT_THAT(refusal({first}, {part(other, ShardRange{0, 2, 2}, half)}),
              HasSubstr("rank 0 describes it as w U8 [4, 4]"));
  EXPECT_EQ(refusal({first}, {part(info, ShardRange{0, 2, 2}, half)}), "accepted");
}

}  // namespace
}  // namespace wsync::publish
