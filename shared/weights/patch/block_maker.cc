#include "shared/weights/patch/block_maker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "shared/base/check.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/touched_sum.h"

namespace wsync::patch {
namespace {

// The 4 KiB that are compared at a time are a block of WordSum, so that its factor is used once.
static_assert(kDifferenceBytes == kSumBlockBytes && kBlockBytes % kSumBlockBytes == 0);
// Whether a dense block is smaller is asked after each 4 KiB, so there is room for as many bytes
// more.
constexpr std::uint64_t kGapRoom = kBlockBytes + 3 * kDifferenceBytes + kVarintBytesMax;
constexpr std::uint64_t kValueRoom = kBlockBytes + kDifferenceBytes;

std::uint64_t word_at(const std::byte* from) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, from, kSumWordBytes);
  return word;
}

// How many elements the bytes of this mask belong to.
template <std::uint32_t kElementBytes>
std::uint64_t changed_elements(std::uint64_t mask) noexcept {
  for (std::uint32_t bytes = 1; bytes < kElementBytes; bytes *= 2) mask |= mask >> bytes;
  // Of each element its first byte, which now stands for all of them.
  constexpr std::uint64_t kFirst = ~std::uint64_t{0} / ((std::uint64_t{1} << kElementBytes) - 1);
  return static_cast<std::uint64_t>(std::popcount(mask & kFirst));
}

}  // namespace

BlockMaker::BlockMaker(CopyKind kind) : kind_(kind), gaps_(kGapRoom), values_(kValueRoom) {}

// `at`: where the 4 KiB begin in the block. `factor`: theirs in the sum.
template <std::uint32_t kElementBytes>
void BlockMaker::collect_chunk(const ChunkDifference& found, const std::byte* base,
                               const std::byte* target, std::uint64_t at, std::uint64_t factor,
                               Cursor& cursor) {
  constexpr std::uint64_t kElement = ~std::uint64_t{0} >> (64 - kElementBytes);
  // In variables of its own, which the bytes that are written cannot change.
  Cursor here = cursor;
  WordSum before;
  WordSum after;
  std::uint64_t last_word = ~std::uint64_t{0};
  for (std::uint64_t stripes = found.stripes; stripes != 0; stripes &= stripes - 1) {
    const auto stripe = static_cast<std::uint64_t>(std::countr_zero(stripes));
    std::uint64_t mask = found.masks[stripe];
    do {
      const auto first = static_cast<std::uint64_t>(std::countr_zero(mask)) / kElementBytes;
      mask &= ~(kElement << first * kElementBytes);
      const std::uint64_t in_chunk = stripe * kStripeBytes + first * kElementBytes;
      const std::uint64_t element = (at + in_chunk) / kElementBytes;
      here.gaps = put_short_varint(here.gaps, element - here.next_element);
      here.next_element = element + 1;
      std::memcpy(here.values, target + in_chunk, kElementBytes);
      here.values += kElementBytes;
      const std::uint64_t word = in_chunk / kSumWordBytes;
      if (word == last_word) continue;
      last_word = word;
      const std::uint64_t key = kTouchedKeys.words[word];
      const std::uint64_t old_word = word_at(base + word * kSumWordBytes);
      const std::uint64_t new_word = word_at(target + word * kSumWordBytes);
      before += {.product = keyed_product(old_word, key), .sum = old_word};
      after += {.product = keyed_product(new_word, key), .sum = new_word};
    } while (mask != 0);
  }
  here.before += {.product = before.product * factor, .sum = before.sum};
  here.after += {.product = after.product * factor, .sum = after.sum};
  cursor = here;
}

template <std::uint32_t kElementBytes>
bool BlockMaker::is_surely_dense(std::span<const std::byte> base, std::span<const std::byte> target,
                                 std::uint64_t at, std::uint64_t collected) {
  ChunkDifference found;
  for (; base.size() - at >= kDifferenceBytes; at += kDifferenceBytes) {
    find_differences(base.data() + at, target.data() + at, std::span(&found, 1), kind_);
    std::uint64_t elements = 0;
    for (std::uint64_t stripes = found.stripes; stripes != 0; stripes &= stripes - 1)
      elements += changed_elements<kElementBytes>(
          found.masks[static_cast<std::size_t>(std::countr_zero(stripes))]);
    // A position has at least one byte.
    collected += elements * (kElementBytes + 1);
    if (collected >= base.size()) return true;
  }
  return false;
}

template <std::uint32_t kElementBytes>
bool BlockMaker::collect(std::span<const std::byte> base, std::span<const std::byte> target,
                         const SumPlace& place, Cursor& cursor) {
  const auto collected = [&] {
    return static_cast<std::uint64_t>(cursor.gaps - gaps_.data()) +
           static_cast<std::uint64_t>(cursor.values - values_.data());
  };
  const auto is_smaller = [&] { return collected() < base.size(); };
  const auto factor_at = [&](std::uint64_t at) {
    return sum_factor(place.seed, (place.position + at) / kSumBlockBytes);
  };
  std::uint64_t at = 0;
  bool is_counted = false;
  while (base.size() - at >= kDifferenceBytes) {
    const std::size_t chunks =
        std::min<std::size_t>(kChunksAtOnce, (base.size() - at) / kDifferenceBytes);
    find_differences(base.data() + at, target.data() + at, std::span(found_).first(chunks), kind_);
    for (const ChunkDifference& found : std::span(found_).first(chunks)) {
      const std::uint64_t factor = factor_at(at);
      cursor.target += {.product = found.second.product * factor, .sum = found.second.sum};
      const std::uint64_t before = collected();
      const std::uint64_t begin = at;
      at += kDifferenceBytes;
      if (found.stripes == 0) continue;
      collect_chunk<kElementBytes>(found, base.data() + begin, target.data() + begin, begin, factor,
                                   cursor);
      if (!is_smaller()) return false;
      // Collecting takes some ten times as long as counting, and where one chunk is dense, all are
      // as a rule.
      if (is_counted || collected() - before < kDifferenceBytes) continue;
      is_counted = true;
      if (is_surely_dense<kElementBytes>(base, target, at, collected())) return false;
    }
  }
  if (at == base.size()) return true;
  // Zeros behind the end, as in words.
  std::array<std::byte, kDifferenceBytes> base_end{};
  std::array<std::byte, kDifferenceBytes> target_end{};
  std::ranges::copy(base.subspan(at), base_end.begin());
  std::ranges::copy(target.subspan(at), target_end.begin());
  find_differences(base_end.data(), target_end.data(), std::span(found_).first(1), kind_);
  // Words behind the end do not count.
  cursor.target +=
      word_sum(target.subspan(at), {.seed = place.seed, .position = place.position + at}, kind_);
  if (found_[0].stripes == 0) return true;
  collect_chunk<kElementBytes>(found_[0], base_end.data(), target_end.data(), at, factor_at(at),
                               cursor);
  return is_smaller();
}

std::optional<Block> BlockMaker::make(const Layout& layout, const BlockPlace& place,
                                      std::span<const std::byte> base,
                                      std::span<const std::byte> target) {
  WSYNC_CHECK(base.size() == target.size() && base.size() == layout.block_bytes(place),
              "both must be the bytes of the block");
  const PatchedTensor& tensor = layout.tensor(place.tensor);
  const SumPlace sum_place{.seed = tensor.seed, .position = Layout::offset(place)};
  Cursor cursor{.gaps = gaps_.data(), .values = values_.data()};
  bool sparse = false;
  switch (tensor.element_bytes) {
    case 1:
      sparse = collect<1>(base, target, sum_place, cursor);
      break;
    case 2:
      sparse = collect<2>(base, target, sum_place, cursor);
      break;
    case 4:
      sparse = collect<4>(base, target, sum_place, cursor);
      break;
    default:
      sparse = collect<8>(base, target, sum_place, cursor);
      break;
  }
  const auto gap_bytes = static_cast<std::size_t>(cursor.gaps - gaps_.data());
  const auto value_bytes = static_cast<std::size_t>(cursor.values - values_.data());
  target_sum_ = cursor.target;
  if (sparse && value_bytes == 0) return std::nullopt;
  if (!sparse) {
    // Summed as it was copied. If the target is written meanwhile, the block is still what it says.
    Block block{.place = place,
                .dense = true,
                .elements = static_cast<std::uint32_t>(base.size() / tensor.element_bytes),
                .gap_bytes = 0,
                .before = word_sum(base, sum_place, kind_),
                .after = {},
                .payload = Bytes(target.begin(), target.end())};
    block.after = word_sum(block.payload, sum_place, kind_);
    target_sum_ = block.after;
    return block;
  }
  Block block{.place = place,
              .dense = false,
              .elements = static_cast<std::uint32_t>(value_bytes / tensor.element_bytes),
              .gap_bytes = static_cast<std::uint32_t>(gap_bytes),
              .before = cursor.before,
              .after = cursor.after,
              .payload = {}};
  block.payload.reserve(gap_bytes + value_bytes);
  block.payload.insert(block.payload.end(), gaps_.data(), cursor.gaps);
  block.payload.insert(block.payload.end(), values_.data(), cursor.values);
  return block;
}

}  // namespace wsync::patch
