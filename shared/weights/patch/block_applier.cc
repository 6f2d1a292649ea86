#include "shared/weights/patch/block_applier.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/element_loop.h"
#include "shared/weights/patch/touched_sum.h"

namespace wsync::patch {
namespace {

// Copies one element. The sizes are those of the machine's own loads and stores.
void copy_element(std::byte* to, const std::byte* from, std::uint32_t size) noexcept {
  switch (size) {
    case 1:
      *to = *from;
      break;
    case 2:
      std::memcpy(to, from, 2);
      break;
    case 4:
      std::memcpy(to, from, 4);
      break;
    default:
      std::memcpy(to, from, 8);
      break;
  }
}

// How many elements have their positions in memory at a time, or those of one block.
constexpr std::size_t kRunElements = 65'536;

std::size_t sparse_elements(const BlockView& block) { return block.dense ? 0 : block.elements; }

// Calls `call` with a number that has as many bytes as an element.
template <class Call>
auto with_element(std::uint32_t element_bytes, Call&& call) {
  switch (element_bytes) {
    case 1:
      return call(std::uint8_t{});
    case 2:
      return call(std::uint16_t{});
    case 4:
      return call(std::uint32_t{});
    default:
      return call(std::uint64_t{});
  }
}

// Calls `visit(byte offset of the word in the block)` for each touched word, once, in ascending
// order.
template <class Visit>
void for_each_touched_word(const BlockView& block, std::span<const std::uint32_t> positions,
                           std::uint32_t size, std::uint64_t block_bytes, Visit&& visit) {
  if (block.dense) {
    for (std::uint64_t at = 0; at < block_bytes; at += kSumWordBytes) visit(at);
    return;
  }
  std::uint64_t next = 0;
  for (const std::uint32_t position : positions) {
    const std::uint64_t at = std::uint64_t{position} * size / kSumWordBytes * kSumWordBytes;
    if (at < next) continue;
    visit(at);
    next = at + kSumWordBytes;
  }
}

std::uint64_t read_word(std::span<const std::byte> bytes, std::uint64_t at) noexcept {
  std::uint64_t word = 0;
  if (bytes.size() - at >= kSumWordBytes)
    std::memcpy(&word, bytes.data() + at, kSumWordBytes);
  else
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  return word;
}

// A word of a tensor as far as a part holds it.
struct PartWord {
  std::uint64_t word = 0;   // zeros in place of the other bytes
  std::uint64_t bytes = 0;  // that the part holds
};

// Reads bytes [begin, end) of the tensor, a word. `address(run, at)` is where byte `at` of the run
// lies.
template <class Address>
PartWord read_part_word(RunCursor& runs, std::uint64_t begin, std::uint64_t end,
                        Address&& address) noexcept {
  PartWord found;
  std::array<std::byte, kSumWordBytes> word{};
  for (std::uint64_t at = begin; at < end;) {
    const TensorPart::Run* run = runs.at(at);
    if (run == nullptr || run->begin >= end) break;
    const std::uint64_t from = std::max(at, run->begin);
    at = std::min(end, run->end);
    std::memcpy(word.data() + (from - begin), address(*run, from), at - from);
    found.bytes += at - from;
  }
  std::memcpy(&found.word, word.data(), kSumWordBytes);
  return found;
}

// Bytes [begin, end) of the tensor that the part holds.
std::uint64_t held_bytes(RunCursor& runs, std::uint64_t begin, std::uint64_t end) noexcept {
  std::uint64_t held = 0;
  for (std::uint64_t at = begin; at < end;) {
    const TensorPart::Run* run = runs.at(at);
    if (run == nullptr || run->begin >= end) break;
    const std::uint64_t from = std::max(at, run->begin);
    at = std::min(end, run->end);
    held += at - from;
  }
  return held;
}

}  // namespace

void BlockApplier::read(const BlockView& block) {
  positions_.resize(block.dense ? 0 : block.elements);
  if (block.dense) return;
  const std::uint32_t size = layout_->tensor(block.place.tensor).element_bytes;
  const auto read = read_positions(block, layout_->block_bytes(block.place) / size, positions_);
  WSYNC_CHECK(read.has_value(), "blocks are checked before they are applied");
}

WordSum BlockApplier::sum(const BlockView& block, std::span<const std::byte> bytes) const {
  return word_sum(bytes, {.seed = layout_->tensor(block.place.tensor).seed,
                          .position = Layout::offset(block.place)});
}

template <class Byte, class Visit>
Result<> BlockApplier::for_each(std::span<const BlockView> blocks, std::span<Byte* const> begins,
                                Visit&& visit) {
  WSYNC_CHECK(begins.size() == blocks.size(), "the bytes of each block");
  const auto element_bytes = [&](std::size_t i) {
    return layout_->tensor(blocks[i].place.tensor).element_bytes;
  };
  for (std::size_t first = 0; first < blocks.size();) {
    std::size_t elements = 0;
    std::size_t end = first;
    do elements += sparse_elements(blocks[end++]);
    while (end < blocks.size() && element_bytes(end) == element_bytes(first) &&
           elements + sparse_elements(blocks[end]) <= kRunElements);
    if (run_positions_.size() < elements) run_positions_.resize(elements);
    WSYNC_TRY(with_element(element_bytes(first), [&]<class Element>(Element) -> Result<> {
      std::uint32_t* positions = run_positions_.data();
      PositionsAhead<Element> ahead(blocks.subspan(first, end - first),
                                    begins.subspan(first, end - first), positions);
      for (std::size_t i = first; i < end; ++i) {
        const std::span<const std::uint32_t> own(positions, sparse_elements(blocks[i]));
        positions += own.size();
        WSYNC_TRY(visit(blocks[i], std::span(begins[i], layout_->block_bytes(blocks[i].place)), own,
                        ahead));
      }
      return {};
    }));
    first = end;
  }
  return {};
}

template <ElementUse kUse, class Element>
TouchedSums BlockApplier::visit(const BlockView& block, std::span<const std::uint32_t> positions,
                                std::span<BlockByte<kUse>> bytes, PositionsAhead<Element>& ahead,
                                std::byte* old_values) {
  if (bytes.size() % kSumWordBytes == 0)
    return visit_elements<Element, kUse>(*layout_, block, positions, bytes, ahead, old_values);
  padded_.assign(bytes.begin(), bytes.end());
  padded_.resize((bytes.size() / kSumWordBytes + 1) * kSumWordBytes);
  const TouchedSums sums =
      visit_elements<Element, kUse>(*layout_, block, positions, padded_, ahead, old_values);
  if constexpr (kUse == ElementUse::kWrite)
    std::copy_n(padded_.begin(), bytes.size(), bytes.begin());
  return sums;
}

template <ElementUse kUse, class Element>
Result<TouchedSums> BlockApplier::prove(const BlockView& block,
                                        std::span<const std::uint32_t> positions,
                                        std::span<const std::byte> bytes,
                                        PositionsAhead<Element>& ahead, std::byte* old_values) {
  TouchedSums found;
  if (!block.dense) {
    found = visit<kUse>(block, positions, bytes, ahead, old_values);
  } else {
    found.before = sum(block, bytes);
    if constexpr (kUse == ElementUse::kCollect) std::memcpy(old_values, bytes.data(), bytes.size());
  }
  if (found.before == block.before || planted("patch_accepts_any_base")) return found;
  if (planted("patch_compares_the_difference")) {
    const WordSum after = block.dense ? sum(block, block.values) : found.after;
    if (after + block.before == found.before + block.after) return found;
  }
  return fail(
      ErrorCode::kDigestMismatch,
      fmt::format("{}: the words that the patch changes have the sum {:016x}{:016x}, expected "
                  "{:016x}{:016x}: {}. Nothing of this block was written",
                  layout_->describe(block.place), found.before.product, found.before.sum,
                  block.before.product, block.before.sum,
                  found.before == block.after ? "they have been patched already"
                                              : "the base is another one than that of the patch"));
}

template <class Element>
Result<> BlockApplier::write_proven(const BlockView& block,
                                    std::span<const std::uint32_t> positions,
                                    std::span<std::byte> bytes, PositionsAhead<Element>& ahead) {
  const WordSum found = block.dense
                            ? replace(block, bytes)
                            : visit<ElementUse::kWrite>(block, positions, bytes, ahead).after;
  if (found == block.after || planted("patch_compares_the_difference")) return {};
  return fail(
      ErrorCode::kDigestMismatch,
      fmt::format("{}: after the patch the words that it changes have the sum "
                  "{:016x}{:016x}, expected {:016x}{:016x}: the block must be written again "
                  "from a complete copy",
                  layout_->describe(block.place), found.product, found.sum, block.after.product,
                  block.after.sum));
}

WordSum BlockApplier::replace(const BlockView& block, std::span<std::byte> bytes) const {
  return copy_streaming_sum(
      bytes, block.values,
      {.seed = layout_->tensor(block.place.tensor).seed, .position = Layout::offset(block.place)});
}

Result<> BlockApplier::apply(const BlockView& block, std::span<std::byte> bytes, BeforeRule rule) {
  WSYNC_CHECK(bytes.size() == layout_->block_bytes(block.place), "the bytes of the block");
  std::byte* const begin = bytes.data();
  return for_each(std::span(&block, 1), std::span(&begin, 1),
                  [&]<class Element>(const BlockView& one, std::span<std::byte> own,
                                     std::span<const std::uint32_t> positions,
                                     PositionsAhead<Element>& ahead) -> Result<> {
                    if (rule == BeforeRule::kRepeat)
                      return write_proven(one, positions, own, ahead);
                    (void)WSYNC_TRY(prove<ElementUse::kProve>(one, positions, own, ahead));
                    PositionsAhead<Element> nothing;
                    return write_proven(one, positions, own, nothing);
                  });
}

Result<> BlockApplier::check(std::span<const BlockView> blocks,
                             std::span<const std::byte* const> begins) {
  return for_each(
      blocks, begins,
      [&]<class Element>(const BlockView& block, std::span<const std::byte> bytes,
                         std::span<const std::uint32_t> positions,
                         PositionsAhead<Element>& ahead) -> Result<> {
        const TouchedSums found =
            WSYNC_TRY(prove<ElementUse::kProve>(block, positions, bytes, ahead));
        const WordSum after = block.dense ? sum(block, block.values) : found.after;
        if (after == block.after) return {};
        return fail(ErrorCode::kDigestMismatch,
                    fmt::format("{}: with the values of the patch the words that it changes have "
                                "the sum {:016x}{:016x}, expected {:016x}{:016x}: the patch is "
                                "damaged. Nothing was written",
                                layout_->describe(block.place), after.product, after.sum,
                                block.after.product, block.after.sum));
      });
}

template <class Element>
Result<Block> BlockApplier::prove_and_reverse(const BlockView& block,
                                              std::span<const std::uint32_t> positions,
                                              std::span<const std::byte> bytes,
                                              PositionsAhead<Element>& ahead) {
  Block made{.place = block.place,
             .dense = block.dense,
             .elements = block.elements,
             .gap_bytes = static_cast<std::uint32_t>(block.gaps.size()),
             .before = block.after,
             .after = block.before,
             .payload = {}};
  made.payload.reserve(block.gaps.size() + block.values.size());
  made.payload.assign(block.gaps.begin(), block.gaps.end());
  made.payload.resize(block.gaps.size() + block.values.size());
  (void)WSYNC_TRY(prove<ElementUse::kCollect>(block, positions, bytes, ahead,
                                              made.payload.data() + block.gaps.size()));
  return made;
}

Result<> BlockApplier::make_reverse(std::span<const BlockView> blocks,
                                    std::span<const std::byte* const> begins,
                                    const std::function<void(Block)>& on_reverse) {
  return for_each(blocks, begins,
                  [&]<class Element>(const BlockView& block, std::span<const std::byte> bytes,
                                     std::span<const std::uint32_t> positions,
                                     PositionsAhead<Element>& ahead) -> Result<> {
                    Block back = WSYNC_TRY(prove_and_reverse(block, positions, bytes, ahead));
                    if (planted("way_back_has_new_values"))
                      std::ranges::copy(block.values, back.payload.begin() + back.gap_bytes);
                    on_reverse(std::move(back));
                    return {};
                  });
}

Result<> BlockApplier::apply_reversibly(std::span<const BlockView> blocks,
                                        std::span<std::byte* const> begins,
                                        const std::function<void(Block)>& on_reverse) {
  return for_each(blocks, begins,
                  [&]<class Element>(const BlockView& block, std::span<std::byte> bytes,
                                     std::span<const std::uint32_t> positions,
                                     PositionsAhead<Element>& ahead) -> Result<> {
                    Block undo =
                        WSYNC_TRY(prove_and_reverse<Element>(block, positions, bytes, ahead));
                    PositionsAhead<Element> nothing;
                    WSYNC_TRY(write_proven(block, positions, bytes, nothing));
                    if (planted("patch_reverse_takes_new_values"))
                      std::ranges::copy(block.values, undo.payload.begin() + undo.gap_bytes);
                    on_reverse(std::move(undo));
                    return {};
                  });
}

std::uint64_t BlockApplier::write_part(const BlockView& block, const TensorPart& part,
                                       std::span<std::byte> bytes) const {
  std::uint64_t written = 0;
  const std::uint32_t size = layout_->tensor(block.place.tensor).element_bytes;
  const std::uint64_t begin = Layout::offset(block.place);
  RunCursor runs(part);
  if (block.dense) {
    const std::uint64_t end = begin + block.values.size();
    for (std::uint64_t at = begin; at < end;) {
      const TensorPart::Run* run = runs.at(at);
      if (run == nullptr || run->begin >= end) break;
      const std::uint64_t from = std::max(at, run->begin);
      at = std::min(end, run->end);
      std::memcpy(bytes.data() + run->offset + (from - run->begin),
                  block.values.data() + (from - begin), at - from);
      written += at - from;
    }
    return written;
  }
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    const std::uint64_t at = begin + std::uint64_t{positions_[i]} * size;
    const TensorPart::Run* run = runs.at(at);
    if (run == nullptr) break;
    if (at < run->begin) continue;
    copy_element(bytes.data() + run->offset + (at - run->begin), block.values.data() + i * size,
                 size);
    written += size;
  }
  return written;
}

template <class Address>
SplitSum BlockApplier::split_sum_of(const BlockView& block, const TensorPart& part,
                                    Address&& address) {
  read(block);
  const PatchedTensor& tensor = layout_->tensor(block.place.tensor);
  const std::uint64_t begin = Layout::offset(block.place);
  const std::uint64_t block_bytes = layout_->block_bytes(block.place);
  TouchedSum words(tensor.seed);
  TouchedSum edges(tensor.seed);
  RunCursor runs(part);
  std::uint64_t summed = 0;  // bytes of a dense block up to here
  for_each_touched_word(
      block, positions_, tensor.element_bytes, block_bytes, [&](std::uint64_t in_block) {
        if (in_block < summed) return;
        const std::uint64_t at = begin + in_block;
        const std::uint64_t end = std::min(at + kSumWordBytes, tensor.bytes);
        const TensorPart::Run* run = runs.at(at);
        if (run == nullptr) return;
        if (block.dense && run->begin <= at && run->end >= end) {
          // All words that lie in this run.
          const std::uint64_t to = std::min(run->end, begin + block_bytes);
          const std::uint64_t whole =
              to == tensor.bytes ? to - at : (to - at) / kSumWordBytes * kSumWordBytes;
          words.add(
              word_sum(std::span(address(*run, at), whole), {.seed = tensor.seed, .position = at}));
          summed = in_block + whole;
          return;
        }
        const PartWord word = read_part_word(runs, at, end, address);
        if (word.bytes == end - at)
          words.add(word.word, at / kSumWordBytes);
        else if (word.bytes != 0)
          edges.add(word.word, at / kSumWordBytes);
      });
  return {.words = words.total(), .edges = edges.total()};
}

SplitSum BlockApplier::sum_of_part(const BlockView& block, const TensorPart& part,
                                   std::span<const std::byte> bytes) {
  WSYNC_CHECK(bytes.size() == part.bytes(), "the memory of the part");
  return split_sum_of(block, part, [&](const TensorPart::Run& run, std::uint64_t at) {
    return bytes.data() + run.offset + (at - run.begin);
  });
}

SplitSum BlockApplier::share_of_part(const BlockView& block, const TensorPart& part,
                                     std::span<const std::byte> block_bytes) {
  WSYNC_CHECK(block_bytes.size() == layout_->block_bytes(block.place), "the bytes of the block");
  const std::uint64_t begin = Layout::offset(block.place);
  return split_sum_of(block, part, [&](const TensorPart::Run& /*run*/, std::uint64_t at) {
    return block_bytes.data() + (at - begin);
  });
}

PartSums BlockApplier::apply_to_part(const BlockView& block, const TensorPart& part,
                                     std::span<std::byte> bytes) {
  PartSums sums;
  apply_to_part(std::span(&block, 1), part, bytes, std::span(&sums, 1));
  return sums;
}

// Where in the part a block lies that it holds in one piece, as whole tensors and rows do, and that
// has whole words. None: another one.
std::optional<std::uint64_t> BlockApplier::place_in_one_piece(const BlockView& block,
                                                              const TensorPart& part) const {
  const std::uint64_t begin = Layout::offset(block.place);
  const std::uint64_t block_bytes = layout_->block_bytes(block.place);
  const auto run = part.run_from(begin);
  if (!run || run->begin > begin || run->end < begin + block_bytes ||
      block_bytes % kSumWordBytes != 0)
    return std::nullopt;
  return run->offset + (begin - run->begin);
}

std::optional<WordSum> BlockApplier::sum_of_replaced(const BlockView& block, const TensorPart& part,
                                                     std::span<const std::byte> bytes) const {
  const auto place = place_in_one_piece(block, part);
  if (!block.dense || !place) return std::nullopt;
  return sum(block, bytes.subspan(*place, layout_->block_bytes(block.place)));
}

void BlockApplier::apply_to_part(std::span<const BlockView> blocks, const TensorPart& part,
                                 std::span<std::byte> bytes, std::span<PartSums> sums,
                                 std::span<const WordSum> replaced) {
  WSYNC_CHECK(bytes.size() == part.bytes(), "the memory of the part");
  WSYNC_CHECK(sums.size() == blocks.size(), "the sums of each block");
  WSYNC_CHECK(replaced.empty() || replaced.size() == blocks.size(), "a sum of each block");
  if (blocks.empty()) return;
  with_element(
      layout_->tensor(blocks.front().place.tensor).element_bytes,
      [&]<class Element>(Element) { apply_run<Element>(blocks, part, bytes, sums, replaced); });
}

template <class Element>
void BlockApplier::apply_run(std::span<const BlockView> blocks, const TensorPart& part,
                             std::span<std::byte> bytes, std::span<PartSums> sums,
                             std::span<const WordSum> replaced) {
  run_begins_.clear();
  std::size_t elements = 0;
  for (const BlockView& block : blocks) {
    const auto place = place_in_one_piece(block, part);
    run_begins_.push_back(place ? bytes.data() + *place : nullptr);
    elements += sparse_elements(block);
  }
  if (run_positions_.size() < elements) run_positions_.resize(elements);
  std::uint32_t* positions = run_positions_.data();
  PositionsAhead<Element> ahead(blocks, run_begins_, positions);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockView& block = blocks[i];
    if (run_begins_[i] == nullptr) {
      sums[i] = {.before = sum_of_part(block, part, bytes), .after = {}};
      sums[i].written_bytes = write_part(block, part, bytes);
      sums[i].after = sum_of_part(block, part, bytes);
      continue;
    }
    const std::size_t sparse = sparse_elements(block);
    const std::span own(run_begins_[i], layout_->block_bytes(block.place));
    TouchedSums written;
    if (block.dense) {
      written.before = replaced.empty() ? sum(block, own) : replaced[i];
      written.after = replace(block, own);
    } else {
      written = visit<ElementUse::kWrite>(block, std::span(positions, sparse), own, ahead);
    }
    positions += sparse;
    sums[i] = {.before = {.words = written.before, .edges = {}},
               .after = {.words = written.after, .edges = {}},
               .written_bytes = block.values.size()};
  }
}

WordSum BlockApplier::sum_of_cut_words(const BlockView& block, std::span<const TensorPart> parts,
                                       std::span<const std::byte> block_bytes) {
  WSYNC_CHECK(block_bytes.size() == layout_->block_bytes(block.place), "the bytes of the block");
  read(block);
  const PatchedTensor& tensor = layout_->tensor(block.place.tensor);
  const std::uint64_t begin = Layout::offset(block.place);
  TouchedSum cut(tensor.seed);
  std::vector<RunCursor> runs(parts.begin(), parts.end());
  for_each_touched_word(
      block, positions_, tensor.element_bytes, block_bytes.size(), [&](std::uint64_t in_block) {
        const std::uint64_t at = begin + in_block;
        const std::uint64_t end = std::min(at + kSumWordBytes, tensor.bytes);
        const bool whole = std::ranges::any_of(
            runs, [&](RunCursor& part) { return held_bytes(part, at, end) == end - at; });
        if (!whole) cut.add(read_word(block_bytes, in_block), at / kSumWordBytes);
      });
  return cut.total();
}

}  // namespace wsync::patch
