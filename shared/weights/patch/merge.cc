#include "shared/weights/patch/merge.h"

#include <algorithm>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/touched_sum.h"

namespace wsync::patch {
namespace {

// The elements that a block writes, and its words.
struct Touched {
  std::vector<std::uint32_t> positions;  // of elements in the block, ascending
  std::vector<std::uint32_t> words;      // numbers in the block, ascending
};

Touched touched_by(const Layout& layout, const BlockView& block) {
  Touched touched;
  const std::uint64_t size = layout.tensor(block.place.tensor).element_bytes;
  const std::uint64_t elements = layout.block_bytes(block.place) / size;
  if (block.dense) {
    for (std::uint32_t i = 0; i < elements; ++i) touched.positions.push_back(i);
  } else {
    const auto read = read_positions(block, elements, touched.positions);
    WSYNC_CHECK(read.has_value(), "blocks are checked before they are merged");
  }
  for (const std::uint32_t position : touched.positions) {
    const auto word = static_cast<std::uint32_t>(position * size / kSumWordBytes);
    if (touched.words.empty() || touched.words.back() != word) touched.words.push_back(word);
  }
  return touched;
}

WordSum difference(const WordSum& a, const WordSum& b) noexcept {
  return {.product = a.product - b.product, .sum = a.sum - b.sum};
}

// The sum of words of a block whose bytes these are.
WordSum sum_of_words(const Layout& layout, const BlockPlace& place,
                     std::span<const std::uint32_t> words, std::span<const std::byte> bytes) {
  TouchedSum sum(layout.tensor(place.tensor).seed);
  for (const std::uint32_t number : words) {
    const std::size_t at = number * kSumWordBytes;
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(kSumWordBytes, bytes.size() - at));
    sum.add(word, (Layout::offset(place) + at) / kSumWordBytes);
  }
  return sum.total();
}

// The values of `second` at their positions in the bytes of B, which makes them those of C.
void write_values(const BlockView& block, std::span<const std::uint32_t> positions,
                  std::uint32_t size, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < positions.size(); ++i)
    std::memcpy(bytes.data() + std::uint64_t{positions[i]} * size, block.values.data() + i * size,
                size);
}

Block sparse_block(const BlockPlace& place, std::span<const std::uint32_t> positions,
                   std::uint32_t size, std::span<const std::byte> bytes) {
  Block block{.place = place,
              .dense = false,
              .elements = static_cast<std::uint32_t>(positions.size()),
              .gap_bytes = 0,
              .before = {},
              .after = {},
              .payload = {}};
  std::uint32_t next = 0;
  for (const std::uint32_t position : positions) {
    put_varint(block.payload, position - next);
    next = position + 1;
  }
  block.gap_bytes = static_cast<std::uint32_t>(block.payload.size());
  for (const std::uint32_t position : positions) {
    const auto value = bytes.subspan(std::uint64_t{position} * size, size);
    block.payload.insert(block.payload.end(), value.begin(), value.end());
  }
  return block;
}

}  // namespace

Result<Block> merge_blocks(const Layout& layout, const BlockView& first, const BlockView& second,
                           std::span<const std::byte> middle) {
  const BlockPlace place = first.place;
  WSYNC_CHECK(place == second.place && middle.size() == layout.block_bytes(place),
              "two blocks of one place and its bytes");
  const Touched one = touched_by(layout, first);
  const Touched two = touched_by(layout, second);
  if (sum_of_words(layout, place, one.words, middle) != first.after ||
      sum_of_words(layout, place, two.words, middle) != second.before)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("{}: the bytes between two patches are not those that the first one "
                            "leads to and the second one begins with",
                            layout.describe(place)));
  Touched both;
  std::ranges::set_union(one.positions, two.positions, std::back_inserter(both.positions));
  std::ranges::set_intersection(one.words, two.words, std::back_inserter(both.words));
  const WordSum shared = sum_of_words(layout, place, both.words, middle);
  const std::uint32_t size = layout.tensor(place.tensor).element_bytes;
  Bytes newest(middle.begin(), middle.end());
  write_values(second, two.positions, size, newest);
  Block merged = sparse_block(place, both.positions, size, newest);
  merged.before = first.before + difference(second.before, shared);
  merged.after = second.after + difference(first.after, shared);
  if (merged.payload.size() < newest.size()) return merged;
  // All words: those that neither touches are in A, B and C the same.
  std::vector<std::uint32_t> words;
  std::ranges::set_union(one.words, two.words, std::back_inserter(words));
  const SumPlace sum_place{.seed = layout.tensor(place.tensor).seed,
                           .position = Layout::offset(place)};
  const WordSum others =
      difference(word_sum(middle, sum_place), sum_of_words(layout, place, words, middle));
  merged.dense = true;
  merged.elements = static_cast<std::uint32_t>(newest.size() / size);
  merged.gap_bytes = 0;
  merged.before += others;
  merged.after += others;
  merged.payload = std::move(newest);
  return merged;
}

Result<Patch> merge(const Layout& layout, const PatchReader& first, const PatchReader& second,
                    const ReadMiddle& read_middle, std::uint64_t bucket_bytes) {
  const Link& one = first.index().link();
  const Link& two = second.index().link();
  if (one.layout != two.layout || one.target != two.base)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the second patch does not begin where the first one ends: its base is "
                            "{}, expected {}",
                            two.base.to_string(), one.target.to_string()));
  auto builder = WSYNC_TRY(PatchBuilder::create(layout, bucket_bytes));
  if (one.base == two.target) return builder.finish(one.base, two.target);
  auto a = first.blocks().begin();
  auto b = second.blocks().begin();
  const auto a_end = first.blocks().end();
  const auto b_end = second.blocks().end();
  Bytes middle;
  while (a != a_end || b != b_end) {
    if (b == b_end || (a != a_end && a->place < b->place)) {
      builder.add(copy_of(*a++));
    } else if (a == a_end || b->place < a->place) {
      builder.add(copy_of(*b++));
    } else {
      middle.resize(layout.block_bytes(a->place));
      WSYNC_TRY(read_middle(a->place, middle));
      builder.add(WSYNC_TRY(merge_blocks(layout, *a++, *b++, middle)));
    }
  }
  return builder.finish(one.base, two.target);
}

}  // namespace wsync::patch
