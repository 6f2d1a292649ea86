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

constexpr std::size_t kPrefetchWords = 16;

// The elements that a sparse block writes, and its words. A dense one, which writes all, has none
// here.
class Touched {
 public:
  // kNone stands behind both lists, so that whoever merges two of them needs no test for their
  // ends.
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  Touched(const Layout& layout, const BlockView& block);
  // Of elements in the block, ascending.
  [[nodiscard]] std::span<const std::uint32_t> positions() const {
    return positions_until_none().first(positions_.size() - 1);
  }
  // Numbers in the block, ascending.
  [[nodiscard]] std::span<const std::uint32_t> words() const {
    return words_until_none().first(words_.size() - 1);
  }
  [[nodiscard]] std::span<const std::uint32_t> positions_until_none() const { return positions_; }
  [[nodiscard]] std::span<const std::uint32_t> words_until_none() const { return words_; }

 private:
  std::vector<std::uint32_t> positions_;
  std::vector<std::uint32_t> words_;
};

Touched::Touched(const Layout& layout, const BlockView& block) {
  const std::uint64_t size = layout.tensor(block.place.tensor).element_bytes;
  if (!block.dense) {
    positions_.resize(block.elements);
    const auto read = read_positions(block, layout.block_bytes(block.place) / size, positions_);
    WSYNC_CHECK(read.has_value(), "blocks are checked before they are merged");
  }
  words_.reserve(positions_.size() + 1);
  for (const std::uint32_t position : positions_) {
    const auto word = static_cast<std::uint32_t>(position * size / kSumWordBytes);
    if (words_.empty() || words_.back() != word) words_.push_back(word);
  }
  positions_.push_back(kNone);
  words_.push_back(kNone);
}

WordSum difference(const WordSum& a, const WordSum& b) noexcept {
  return {.product = a.product - b.product, .sum = a.sum - b.sum};
}

// The sum of words of a block whose bytes these are.
WordSum sum_of_words(const Layout& layout, const BlockPlace& place,
                     std::span<const std::uint32_t> words, std::span<const std::byte> bytes) {
  TouchedSum sum(layout.tensor(place.tensor).seed);
  for (std::size_t i = 0; i < words.size(); ++i) {
    // Few of them lie side by side, so without this most of the time is spent waiting for memory.
    if (i + kPrefetchWords < words.size())
      __builtin_prefetch(bytes.data() + words[i + kPrefetchWords] * kSumWordBytes);
    const std::size_t at = words[i] * kSumWordBytes;
    std::uint64_t word = 0;
    if (bytes.size() - at >= kSumWordBytes)
      std::memcpy(&word, bytes.data() + at, kSumWordBytes);
    else
      std::memcpy(&word, bytes.data() + at, bytes.size() - at);
    sum.add(word, (Layout::offset(place) + at) / kSumWordBytes);
  }
  return sum.total();
}

// The values of `block` at their positions in the bytes of B.
void write_values(const BlockView& block, std::span<const std::uint32_t> positions,
                  std::uint32_t size, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < positions.size(); ++i)
    std::memcpy(bytes.data() + std::uint64_t{positions[i]} * size, block.values.data() + i * size,
                size);
}

// Both lists of positions end with kNone. Writes the elements of both blocks, with the values of
// the second one where both write: gaps to `gap`, values to `to`, which have room. Returns their
// ends. Which block is next is as good as random, so there is no branch for it.
struct Ends {
  std::byte* gap = nullptr;
  std::byte* value = nullptr;
};
template <std::uint32_t kSize>
Ends write_newest(const BlockView& first, std::span<const std::uint32_t> one,
                  const BlockView& second, std::span<const std::uint32_t> two, Ends to) {
  std::uint32_t next = 0;
  std::size_t a = 0;
  std::size_t b = 0;
  while (a + b + 2 < one.size() + two.size()) {
    const std::uint32_t position = std::min(one[a], two[b]);
    const std::byte* const from =
        two[b] == position ? second.values.data() + b * kSize : first.values.data() + a * kSize;
    std::memcpy(to.value, from, kSize);
    to.value += kSize;
    a += one[a] == position ? 1U : 0U;
    b += two[b] == position ? 1U : 0U;
    to.gap = put_short_varint(to.gap, position - next);
    next = position + 1;
  }
  return to;
}

// The sums are left to the caller.
Block newest_values(const BlockView& first, const Touched& one, const BlockView& second,
                    const Touched& two, std::uint32_t size) {
  Bytes values(first.values.size() + second.values.size());
  // A position has at most three bytes, and put_short_varint() may write up to kVarintBytesMax.
  static_assert(kBlockBytes < 1U << 21U);
  Bytes gaps(3 * (one.positions().size() + two.positions().size()) + kVarintBytesMax);
  const auto first_positions = one.positions_until_none();
  const auto second_positions = two.positions_until_none();
  const Ends begin{.gap = gaps.data(), .value = values.data()};
  const auto write = [&] {
    switch (size) {
      case 1:
        return write_newest<1>(first, first_positions, second, second_positions, begin);
      case 2:
        return write_newest<2>(first, first_positions, second, second_positions, begin);
      case 4:
        return write_newest<4>(first, first_positions, second, second_positions, begin);
      default:
        return write_newest<8>(first, first_positions, second, second_positions, begin);
    }
  };
  const Ends end = write();
  const auto value_bytes = static_cast<std::size_t>(end.value - values.data());
  Block block{.place = first.place,
              .dense = false,
              .elements = static_cast<std::uint32_t>(value_bytes / size),
              .gap_bytes = static_cast<std::uint32_t>(end.gap - gaps.data()),
              .before = {},
              .after = {},
              .payload = {}};
  block.payload.reserve(block.gap_bytes + value_bytes);
  block.payload.insert(block.payload.end(), gaps.data(), end.gap);
  block.payload.insert(block.payload.end(), values.data(), end.value);
  return block;
}

// The words of both lists, which end with kNone.
std::vector<std::uint32_t> in_both(std::span<const std::uint32_t> one,
                                   std::span<const std::uint32_t> two) {
  std::vector<std::uint32_t> both(std::min(one.size(), two.size()));
  std::size_t count = 0;
  std::size_t a = 0;
  std::size_t b = 0;
  while (a + 1 < one.size() && b + 1 < two.size()) {
    const std::uint32_t word = std::min(one[a], two[b]);
    both[count] = word;
    count += one[a] == two[b] ? 1U : 0U;
    a += one[a] == word ? 1U : 0U;
    b += two[b] == word ? 1U : 0U;
  }
  both.resize(count);
  return both;
}

// All bytes of the block in C, in place of what `merged` has. `others`: what all words have in B
// that `merged` does not touch. They are in A, B and C the same.
void make_dense(Block& merged, Bytes newest, std::uint32_t size, const WordSum& others) {
  merged.dense = true;
  merged.elements = static_cast<std::uint32_t>(newest.size() / size);
  merged.gap_bytes = 0;
  merged.before += others;
  merged.after += others;
  merged.payload = std::move(newest);
}

// The words that a block touches. Those of a dense block are never listed.
WordSum sum_of_touched(const Layout& layout, const BlockView& block, const Touched& touched,
                       std::span<const std::byte> bytes) {
  if (!block.dense) return sum_of_words(layout, block.place, touched.words(), bytes);
  return word_sum(bytes, {.seed = layout.tensor(block.place.tensor).seed,
                          .position = Layout::offset(block.place)});
}

// One of them is dense, so the result is, and has the sums of all words.
Block merge_dense(const BlockView& first, const BlockView& second, const Touched& two,
                  std::uint32_t size, std::span<const std::byte> middle) {
  Block merged = copy_of(second.dense ? second : first);
  // Words that a sparse one does not touch are the same on both sides of it.
  merged.before =
      first.dense ? first.before : second.before + difference(first.before, first.after);
  merged.after =
      second.dense ? second.after : first.after + difference(second.after, second.before);
  if (!second.dense) {
    merged.payload.assign(middle.begin(), middle.end());
    write_values(second, two.positions(), size, merged.payload);
  }
  return merged;
}

}  // namespace

Result<Block> merge_blocks(const Layout& layout, const BlockView& first, const BlockView& second,
                           std::span<const std::byte> middle) {
  const BlockPlace place = first.place;
  WSYNC_CHECK(place == second.place && middle.size() == layout.block_bytes(place),
              "two blocks of one place and its bytes");
  const Touched one(layout, first);
  const Touched two(layout, second);
  if (sum_of_touched(layout, first, one, middle) != first.after ||
      sum_of_touched(layout, second, two, middle) != second.before)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("{}: the bytes between two patches are not those that the first one "
                            "leads to and the second one begins with",
                            layout.describe(place)));
  const std::uint32_t size = layout.tensor(place.tensor).element_bytes;
  if (first.dense || second.dense) return merge_dense(first, second, two, size, middle);
  const WordSum shared =
      sum_of_words(layout, place, in_both(one.words_until_none(), two.words_until_none()), middle);
  Block merged = newest_values(first, one, second, two, size);
  merged.before = first.before + difference(second.before, shared);
  merged.after = second.after + difference(first.after, shared);
  if (merged.payload.size() < middle.size()) return merged;
  Bytes newest(middle.begin(), middle.end());
  write_values(second, two.positions(), size, newest);
  std::vector<std::uint32_t> words;
  std::ranges::set_union(one.words(), two.words(), std::back_inserter(words));
  const SumPlace sum_place{.seed = layout.tensor(place.tensor).seed,
                           .position = Layout::offset(place)};
  make_dense(merged, std::move(newest), size,
             difference(word_sum(middle, sum_place), sum_of_words(layout, place, words, middle)));
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
