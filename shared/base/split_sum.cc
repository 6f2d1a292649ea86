#include "shared/base/split_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shared/base/stream_copy.h"

namespace wsync {
namespace {

// Bytes of a range before its first whole word, and of its whole words. The rest is its end.
struct Division {
  std::size_t head = 0;
  std::size_t whole = 0;
};

Division divide(std::size_t bytes, const RangePlace& place) noexcept {
  Division division;
  const std::uint64_t cut = place.position % kSumWordBytes;
  if (cut != 0) division.head = std::min<std::size_t>(kSumWordBytes - cut, bytes);
  const std::uint64_t end = place.position + bytes;
  const std::size_t rest = bytes - division.head;
  const std::size_t tail = rest == 0 || end == place.tensor_bytes ? 0 : end % kSumWordBytes;
  division.whole = rest - tail;
  return division;
}

// The sum of a part of one word.
WordSum edge_sum(std::span<const std::byte> bytes, const RangePlace& place,
                 std::uint64_t offset) noexcept {
  if (bytes.empty()) return {};
  const std::uint64_t position = place.position + offset;
  const std::uint64_t cut = position % kSumWordBytes;
  std::array<std::byte, kSumWordBytes> word{};
  std::memcpy(word.data() + cut, bytes.data(), bytes.size());
  return word_sum(word, {.seed = place.seed, .position = position - cut});
}

SplitSum edges_of(std::span<const std::byte> bytes, const Division& division,
                  const RangePlace& place) noexcept {
  const std::size_t tail = division.head + division.whole;
  return {.words = {},
          .edges = edge_sum(bytes.first(division.head), place, 0) +
                   edge_sum(bytes.subspan(tail), place, tail)};
}

}  // namespace

SplitSum split_sum(std::span<const std::byte> bytes, const RangePlace& place) noexcept {
  const Division division = divide(bytes.size(), place);
  SplitSum sum = edges_of(bytes, division, place);
  if (division.whole == 0) return sum;
  sum.words = word_sum(bytes.subspan(division.head, division.whole),
                       {.seed = place.seed, .position = place.position + division.head});
  return sum;
}

SplitSum copy_split_sum(std::span<std::byte> destination, std::span<const std::byte> source,
                        const RangePlace& place) noexcept {
  const Division division = divide(source.size(), place);
  const std::size_t tail = division.head + division.whole;
  std::copy_n(source.begin(), division.head, destination.begin());
  std::ranges::copy(source.subspan(tail), destination.subspan(tail).begin());
  SplitSum sum = edges_of(destination, division, place);  // what was copied, not read again
  if (division.whole == 0) return sum;
  sum.words = copy_streaming_sum(destination.subspan(division.head, division.whole),
                                 source.subspan(division.head, division.whole),
                                 {.seed = place.seed, .position = place.position + division.head});
  return sum;
}

}  // namespace wsync
