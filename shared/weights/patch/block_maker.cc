#include "shared/weights/patch/block_maker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "shared/base/check.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

constexpr std::uint64_t kGapBytesMax = 3;  // of an element's number in a block
static_assert(kBlockBytes < 1ULL << (7 * kGapBytesMax));

std::uint64_t word_at(const std::byte* from) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, from, kSumWordBytes);
  return word;
}

}  // namespace

// What is compared. The bytes at `base` and `target` are those from `offset` on in the block.
struct BlockMaker::Pair {
  const std::byte* base = nullptr;
  const std::byte* target = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t first_word = 0;  // number of the block's first word in the tensor
};

BlockMaker::BlockMaker(CopyKind kind)
    : kind_(kind), gaps_(kBlockBytes + kGapBytesMax), values_(kBlockBytes + kSumWordBytes) {}

// Adds the elements of a stripe that differ. Returns false as soon as a dense block is not larger.
template <std::uint32_t kElementBytes>
bool BlockMaker::collect_stripe(const Pair& pair, std::uint64_t mask, std::uint64_t at) {
  constexpr std::uint64_t kElement = ~std::uint64_t{0} >> (64 - kElementBytes);
  while (mask != 0) {
    const auto first = static_cast<std::uint64_t>(std::countr_zero(mask)) / kElementBytes;
    mask &= ~(kElement << first * kElementBytes);
    const std::uint64_t in_stripe = first * kElementBytes;
    const std::uint64_t element = (at + in_stripe) / kElementBytes;
    const std::byte* const gap_begin = gap_end_;
    gap_end_ = put_varint(gap_end_, element - next_element_);
    next_element_ = element + 1;
    const std::uint64_t used = static_cast<std::uint64_t>(gap_end_ - gap_begin) + kElementBytes;
    if (used >= room_) return false;
    room_ -= used;
    std::memcpy(value_end_, pair.target + in_stripe, kElementBytes);
    value_end_ += kElementBytes;
    const std::uint64_t in_word = in_stripe / kSumWordBytes * kSumWordBytes;
    const std::uint64_t word = (at + in_word) / kSumWordBytes;
    if (word < next_word_) continue;
    next_word_ = word + 1;
    before_.add(word_at(pair.base + in_word), pair.first_word + word);
    after_.add(word_at(pair.target + in_word), pair.first_word + word);
  }
  return true;
}

// The bytes behind the last 4 KiB of a block. The last stripe is filled with zeros, as words are.
template <std::uint32_t kElementBytes>
bool BlockMaker::collect_rest(const Pair& pair, std::uint64_t at) {
  for (; at < pair.bytes; at += kStripeBytes) {
    std::array<std::byte, kStripeBytes> base{};
    std::array<std::byte, kStripeBytes> target{};
    const std::size_t bytes = std::min<std::uint64_t>(kStripeBytes, pair.bytes - at);
    std::memcpy(base.data(), pair.base + at, bytes);
    std::memcpy(target.data(), pair.target + at, bytes);
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kStripeBytes; ++i) mask |= std::uint64_t{base[i] != target[i]} << i;
    const Pair stripe{base.data(), target.data(), kStripeBytes, pair.first_word};
    if (!collect_stripe<kElementBytes>(stripe, mask, at)) return false;
  }
  return true;
}

template <std::uint32_t kElementBytes>
bool BlockMaker::collect(const Pair& pair) {
  std::uint64_t at = 0;
  for (; pair.bytes - at >= kDifferenceBytes; at += kDifferenceBytes) {
    if (!find_differences(pair.base + at, pair.target + at, masks_, kind_)) continue;
    for (std::size_t i = 0; i < masks_.size(); ++i) {
      if (masks_[i] == 0) continue;
      const std::uint64_t stripe = at + i * kStripeBytes;
      const Pair here{pair.base + stripe, pair.target + stripe, kStripeBytes, pair.first_word};
      if (!collect_stripe<kElementBytes>(here, masks_[i], stripe)) return false;
    }
  }
  return collect_rest<kElementBytes>(pair, at);
}

std::optional<Block> BlockMaker::make(const Layout& layout, const BlockPlace& place,
                                      std::span<const std::byte> base,
                                      std::span<const std::byte> target) {
  WSYNC_CHECK(base.size() == target.size() && base.size() == layout.block_bytes(place),
              "both must be the bytes of the block");
  const PatchedTensor& tensor = layout.tensor(place.tensor);
  const std::uint64_t offset = Layout::offset(place);
  gap_end_ = gaps_.data();
  value_end_ = values_.data();
  next_element_ = next_word_ = 0;
  room_ = base.size();
  before_ = after_ = TouchedSum(tensor.seed);
  const Pair pair{base.data(), target.data(), base.size(), offset / kSumWordBytes};
  bool sparse = false;
  switch (tensor.element_bytes) {
    case 1:
      sparse = collect<1>(pair);
      break;
    case 2:
      sparse = collect<2>(pair);
      break;
    case 4:
      sparse = collect<4>(pair);
      break;
    default:
      sparse = collect<8>(pair);
      break;
  }
  if (!sparse) {
    const SumPlace sum_place{.seed = tensor.seed, .position = offset};
    return Block{.place = place,
                 .dense = true,
                 .elements = static_cast<std::uint32_t>(base.size() / tensor.element_bytes),
                 .gap_bytes = 0,
                 .before = word_sum(base, sum_place, kind_),
                 .after = word_sum(target, sum_place, kind_),
                 .payload = Bytes(target.begin(), target.end())};
  }
  if (value_end_ == values_.data()) return std::nullopt;
  Block block{.place = place,
              .dense = false,
              .elements = static_cast<std::uint32_t>(
                  static_cast<std::size_t>(value_end_ - values_.data()) / tensor.element_bytes),
              .gap_bytes = static_cast<std::uint32_t>(gap_end_ - gaps_.data()),
              .before = before_.total(),
              .after = after_.total(),
              .payload = {}};
  block.payload.reserve(static_cast<std::size_t>(gap_end_ - gaps_.data()) +
                        static_cast<std::size_t>(value_end_ - values_.data()));
  block.payload.insert(block.payload.end(), gaps_.data(), gap_end_);
  block.payload.insert(block.payload.end(), values_.data(), value_end_);
  return block;
}

}  // namespace wsync::patch
