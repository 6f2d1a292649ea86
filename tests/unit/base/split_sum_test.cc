#include "shared/base/split_sum.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "shared/base/stream_copy.h"
#include "tests/support/bytes.h"

namespace wsync {
namespace {

std::vector<std::byte> some_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  fill_random(random, bytes);
  return bytes;
}

// Word by word, as the header defines it: slow, and right by construction.
SplitSum reference(std::span<const std::byte> tensor, std::size_t begin, std::size_t end,
                   std::uint64_t seed) {
  SplitSum sum;
  for (std::size_t word = 0; word < tensor.size(); word += kSumWordBytes) {
    const std::size_t word_end = std::min<std::size_t>(word + kSumWordBytes, tensor.size());
    const std::size_t first = std::max(begin, word);
    const std::size_t last = std::min(end, word_end);
    if (first >= last) continue;
    std::array<std::byte, kSumWordBytes> bytes{};
    std::ranges::copy(tensor.subspan(first, last - first),
                      bytes.begin() + static_cast<std::ptrdiff_t>(first - word));
    const bool is_whole = first == word && last == word_end;
    (is_whole ? sum.words : sum.edges) += word_sum(bytes, {.seed = seed, .position = word});
  }
  return sum;
}

TEST(SplitSum, IsThatOfItsWholeWordsAndOfTheWordsThatItCuts) {
  std::mt19937_64 random(1);
  for (const std::size_t size : {1U, 7U, 8U, 9U, 64U, 1'000U, 4'096U, 20'003U}) {
    const auto tensor = some_bytes(size, size);
    for (int i = 0; i < 500; ++i) {
      const std::size_t begin = random() % (size + 1);
      const std::size_t end = begin + random() % (size - begin + 1);
      const RangePlace place{.seed = size, .position = begin, .tensor_bytes = size};
      const auto range = std::span(tensor).subspan(begin, end - begin);
      const SplitSum expected = reference(tensor, begin, end, size);
      ASSERT_EQ(split_sum(range, place), expected) << size << ": " << begin << " to " << end;
      std::vector<std::byte> copy(range.size() + 1, std::byte{0xee});
      ASSERT_EQ(copy_split_sum(std::span(copy).first(range.size()), range, place), expected);
      ASSERT_TRUE(same_bytes(std::span(copy).first(range.size()), range));
      ASSERT_EQ(copy.back(), std::byte{0xee});
    }
  }
}

TEST(SplitSum, RangesThatMeetAtWordsAddUp) {
  const auto tensor = some_bytes(10'001, 3);
  SplitSum sum;
  for (std::size_t begin = 0; begin < tensor.size(); begin += 72)
    sum += split_sum(
        std::span(tensor).subspan(begin, std::min<std::size_t>(72, tensor.size() - begin)),
        {.seed = 5, .position = begin, .tensor_bytes = tensor.size()});
  EXPECT_EQ(sum, (SplitSum{.words = word_sum(tensor, {.seed = 5}), .edges = {}}));
}

TEST(WordSum, RowsAddUpAsTheyDoOneByOne) {
  for (const CopyKind kind : available_copy_kinds())
    for (const std::uint64_t row : {8U, 40U, 64U, 256U, 1'000U, 4'096U, 5'000U}) {
      const auto bytes = some_bytes(7 * row, row);
      const std::uint64_t stride = row + 4'104;
      WordSum one_by_one;
      for (std::uint64_t r = 0; r < 7; ++r)
        one_by_one += word_sum(std::span(bytes).subspan(r * row, row),
                               {.seed = 9, .position = 24 + r * stride}, kind);
      EXPECT_EQ(word_sum_rows(bytes, row, stride, {.seed = 9, .position = 24}, kind), one_by_one)
          << copy_kind_name(kind) << ", rows of " << row;
    }
}

}  // namespace
}  // namespace wsync
