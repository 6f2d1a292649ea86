#include "inference_side/engine_link/patch_words.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/planted.h"
#include "shared/base/word_sum.h"
#include "shared/device/changed_word.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/format.h"

namespace wsync::engine {
namespace {

static_assert(patch::kBlockBytes / kSumWordBytes <= device::kWordNumbers);
static_assert(2 * (patch::kBlockBytes / kSumWordBytes / PatchWords::kPlainWordsMin) + 1 <=
              PatchWords::kBlocksMax);

// Bits [first, first + count).
constexpr std::uint32_t bits(std::uint64_t first, std::uint64_t count) {
  return ((std::uint32_t{1} << count) - 1) << first;
}

}  // namespace

std::uint64_t PatchWords::words_max(const patch::Layout& layout, const patch::BlockView& block) {
  if (!block.dense) return block.elements;
  return (layout.block_bytes(block.place) + kSumWordBytes - 1) / kSumWordBytes;
}

void PatchWords::expand(const patch::BlockView& block, const patch::TensorPart& part) {
  blocks_.clear();
  positions_.clear();
  written_bytes_ = 0;
  added_ = 0;
  closed_ = 0;
  begin_ = patch::Layout::offset(block.place);
  const std::uint64_t bytes = layout_->block_bytes(block.place);
  const std::uint64_t words = words_max(*layout_, block);
  if (values_.size() < words) {
    values_.resize(words);
    heads_.resize(words);
    places_.resize(words);
  }
  if (!block.dense) {
    const std::uint32_t size = layout_->tensor(block.place.tensor).element_bytes;
    positions_.resize(block.elements);
    const auto read = patch::read_positions(block, bytes / size, positions_);
    WSYNC_CHECK(read.has_value(), "blocks are checked before they are expanded");
  }
  const auto run = part.run_from(begin_);
  if (!run) return;
  if (run->begin <= begin_ && run->end >= begin_ + bytes)
    expand_whole(block, run->offset + (begin_ - run->begin));
  else
    expand_part(block, part);
}

// The part holds all of the block in one piece, as whole tensors and rows do, so it cuts no word.
void PatchWords::expand_whole(const patch::BlockView& block, std::uint64_t at) {
  const std::uint64_t bytes = layout_->block_bytes(block.place);
  const std::uint64_t words = bytes / kSumWordBytes;  // but for a short one behind them
  written_bytes_ = block.values.size();
  if (block.dense) {
    if (words > 0) add_plain(block, 0, words, at);
    if (bytes % kSumWordBytes != 0) {
      const Word last = dense_word(block, words * kSumWordBytes);
      add(device::pack({.number = static_cast<std::uint32_t>(words), .changed = last.changed}),
          last.value);
    }
  } else {
    switch (layout_->tensor(block.place.tensor).element_bytes) {
      case 1:
        add_elements<std::uint8_t>(block.values);
        break;
      case 2:
        add_elements<std::uint16_t>(block.values);
        break;
      case 4:
        add_elements<std::uint32_t>(block.values);
        break;
      default:
        add_elements<std::uint64_t>(block.values);
        break;
    }
  }
  // The last word of a tensor may be short.
  if (added_ > 0 && heads_[added_ - 1] % device::kWordNumbers == words)
    heads_[added_ - 1] &=
        ~((device::kAllBytes & ~bits(0, bytes % kSumWordBytes)) << device::kHeldBytesShift);
  close_single(at, bytes, false);
}

// The loop that decides how fast a patch is expanded: nothing in it depends on the part.
template <class Element>
void PatchWords::add_elements(std::span<const std::byte> values) {
  constexpr std::uint32_t kInWord = kSumWordBytes / sizeof(Element);
  constexpr std::uint32_t kBytes = bits(0, sizeof(Element));
  const std::uint32_t* const positions = positions_.data();
  const std::size_t count = positions_.size();
  std::uint64_t* value_of_word = values_.data();
  std::uint32_t* head_of_word = heads_.data();
  for (std::size_t i = planted("gpu_patch_skips_an_element") ? 1 : 0; i < count;) {
    const std::uint32_t number = positions[i] / kInWord;
    std::uint64_t word = 0;
    std::uint32_t changed = 0;
    do {
      const std::uint32_t at = positions[i] % kInWord * sizeof(Element);
      Element value = 0;
      std::memcpy(&value, values.data() + i * sizeof(Element), sizeof(Element));
      word |= std::uint64_t{value} << (8 * at);
      changed |= kBytes << at;
      ++i;
    } while (i < count && positions[i] / kInWord == number);
    *value_of_word++ = word;
    *head_of_word++ = device::pack({.number = number, .changed = changed});
  }
  added_ = static_cast<std::size_t>(head_of_word - heads_.data());
}

void PatchWords::expand_part(const patch::BlockView& block, const patch::TensorPart& part) {
  patch::RunCursor runs(part);
  const patch::TensorPart::Run first = *runs.at(begin_);
  to_offset_ = first.offset + (begin_ > first.begin ? begin_ - first.begin : 0);
  to_end_ = to_offset_;
  if (!block.dense) {
    for (std::size_t next = 0; next < positions_.size();) add_held(sparse_word(block, next), runs);
    return close_single(to_offset_, to_end_ - to_offset_, true);
  }
  const std::uint64_t bytes = block.values.size();
  for (std::uint64_t at = 0; at < bytes;) {
    const patch::TensorPart::Run* run = runs.at(begin_ + at);
    if (run == nullptr || run->begin >= begin_ + bytes) break;
    // Words before the run.
    if (run->begin > begin_ + at)
      at = std::max(at, (run->begin - begin_) / kSumWordBytes * kSumWordBytes);
    const std::uint64_t words =
        run->begin <= begin_ + at ? (std::min(run->end - begin_, bytes) - at) / kSumWordBytes : 0;
    if (words >= kPlainWordsMin) {
      close_single(to_offset_, to_end_ - to_offset_, true);
      add_plain(block, at, words, run->offset + (begin_ + at - run->begin));
      written_bytes_ += words * kSumWordBytes;
      at += words * kSumWordBytes;
    } else {
      add_held(dense_word(block, at), runs);
      at += kSumWordBytes;
    }
  }
  close_single(to_offset_, to_end_ - to_offset_, true);
}

PatchWords::Word PatchWords::sparse_word(const patch::BlockView& block, std::size_t& next) const {
  const patch::PatchedTensor& tensor = layout_->tensor(block.place.tensor);
  const std::uint32_t size = tensor.element_bytes;
  const std::uint64_t number = std::uint64_t{positions_[next]} * size / kSumWordBytes;
  Word word{.begin = begin_ + number * kSumWordBytes};
  word.end = std::min(word.begin + kSumWordBytes, tensor.bytes);
  do {
    const std::uint64_t at = std::uint64_t{positions_[next]} * size - number * kSumWordBytes;
    std::uint64_t value = 0;
    std::memcpy(&value, block.values.data() + next * size, size);
    word.value |= value << (8 * at);
    word.changed |= bits(at, size);
    ++next;
  } while (next < positions_.size() &&
           std::uint64_t{positions_[next]} * size / kSumWordBytes == number);
  return word;
}

PatchWords::Word PatchWords::dense_word(const patch::BlockView& block,
                                        std::uint64_t in_block) const {
  const std::uint64_t bytes = std::min(kSumWordBytes, block.values.size() - in_block);
  Word word{
      .begin = begin_ + in_block, .end = begin_ + in_block + bytes, .changed = bits(0, bytes)};
  std::memcpy(&word.value, block.values.data() + in_block, bytes);
  return word;
}

void PatchWords::add(std::uint32_t head, std::uint64_t value) {
  heads_[added_] = head;
  values_[added_] = value;
  ++added_;
}

// Bytes of a word that a part holds lie one behind the other there.
void PatchWords::add_held(const Word& word, patch::RunCursor& runs) {
  std::uint32_t held = 0;
  std::uint64_t place = 0;
  for (std::uint64_t at = word.begin; at < word.end;) {
    const patch::TensorPart::Run* run = runs.at(at);
    if (run == nullptr || run->begin >= word.end) break;
    const std::uint64_t from = std::max(at, run->begin);
    at = std::min(word.end, run->end);
    if (held == 0) place = run->offset + (from - run->begin);
    held |= bits(from - word.begin, at - from);
  }
  if (held == 0) return;
  const std::uint32_t changed = word.changed & held;
  written_bytes_ += static_cast<std::uint64_t>(std::popcount(changed));
  places_[added_] = static_cast<std::uint32_t>(place - to_offset_);
  to_end_ = place + static_cast<std::uint64_t>(std::popcount(held));
  add(device::pack({.number = static_cast<std::uint32_t>((word.begin - begin_) / kSumWordBytes),
                    .changed = changed,
                    .held = held,
                    .is_edge = held != bits(0, word.end - word.begin)}),
      word.value);
}

void PatchWords::add_plain(const patch::BlockView& block, std::uint64_t in_block,
                           std::uint64_t words, std::uint64_t to_offset) {
  blocks_.push_back({.to_offset = to_offset,
                     .to_bytes = words * kSumWordBytes,
                     .position = begin_ + in_block,
                     .words = static_cast<std::uint32_t>(words),
                     .values = block.values.subspan(in_block, words * kSumWordBytes),
                     .heads = {},
                     .places = {}});
}

void PatchWords::close_single(std::uint64_t to_offset, std::uint64_t to_bytes, bool has_places) {
  const std::size_t words = added_ - closed_;
  if (words == 0) return;
  blocks_.push_back({.to_offset = to_offset,
                     .to_bytes = to_bytes,
                     .position = begin_,
                     .words = static_cast<std::uint32_t>(words),
                     .values = std::as_bytes(std::span(values_).subspan(closed_, words)),
                     .heads = std::span(heads_).subspan(closed_, words),
                     .places = {}});
  if (has_places) blocks_.back().places = std::span(places_).subspan(closed_, words);
  closed_ = added_;
}

}  // namespace wsync::engine
