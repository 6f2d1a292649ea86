#include "shared/weights/patch/block_applier.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/element_writer.h"
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
  const PatchedTensor& tensor = layout_->tensor(block.place.tensor);
  const std::uint64_t offset = Layout::offset(block.place);
  if (block.dense) return word_sum(bytes, {.seed = tensor.seed, .position = offset});
  const auto fetch = [&](std::size_t i) {
    if (i < positions_.size())
      __builtin_prefetch(bytes.data() + std::uint64_t{positions_[i]} * tensor.element_bytes, 0, 2);
  };
  for (std::size_t i = 0; i < kPositionsAhead; ++i) fetch(i);
  WordSum total;
  std::size_t i = 0;
  while (i < positions_.size()) {
    // The words of one block of the sum, which have a factor in common.
    const std::uint64_t block_begin =
        std::uint64_t{positions_[i]} * tensor.element_bytes / kSumBlockBytes * kSumBlockBytes;
    const std::uint64_t end = (block_begin + kSumBlockBytes) / tensor.element_bytes;
    WordSum part;
    std::uint64_t last_word = ~std::uint64_t{0};
    for (; i < positions_.size() && positions_[i] < end; ++i) {
      fetch(i + kPositionsAhead);
      const std::uint64_t number =
          std::uint64_t{positions_[i]} * tensor.element_bytes / kSumWordBytes;
      if (number == last_word) continue;
      last_word = number;
      const std::uint64_t word = read_word(bytes, number * kSumWordBytes);
      part +=
          {.product = keyed_product(word, kTouchedKeys.words[number % kSumKeyCount]), .sum = word};
    }
    total.product +=
        part.product * sum_factor(tensor.seed, (offset + block_begin) / kSumBlockBytes);
    total.sum += part.sum;
  }
  return total;
}

WordSum BlockApplier::sum_with_values(const BlockView& block,
                                      std::span<const std::byte> bytes) const {
  // All bytes of a dense block are values.
  if (block.dense) return sum(block, block.values);
  const PatchedTensor& tensor = layout_->tensor(block.place.tensor);
  const std::uint64_t size = tensor.element_bytes;
  TouchedSum total(tensor.seed);
  for (std::size_t i = 0; i < positions_.size();) {
    const std::uint64_t begin = positions_[i] * size / kSumWordBytes * kSumWordBytes;
    std::uint64_t word = read_word(bytes, begin);
    std::byte* in_word = std::as_writable_bytes(std::span(&word, 1)).data();
    for (; i < positions_.size() && positions_[i] * size < begin + kSumWordBytes; ++i)
      copy_element(in_word + (positions_[i] * size - begin), block.values.data() + i * size,
                   tensor.element_bytes);
    total.add(word, (Layout::offset(block.place) + begin) / kSumWordBytes);
  }
  return total.total();
}

template <class Element>
WrittenSums BlockApplier::write(const BlockView& block, std::span<const std::uint32_t> positions,
                                std::span<std::byte> bytes, PositionsAhead<Element>& ahead) const {
  if (!block.dense) return write_elements(*layout_, block, positions, bytes, ahead);
  return replace(block, bytes, sum(block, bytes));
}

WrittenSums BlockApplier::replace(const BlockView& block, std::span<std::byte> bytes,
                                  const WordSum& before) const {
  const SumPlace place{.seed = layout_->tensor(block.place.tensor).seed,
                       .position = Layout::offset(block.place)};
  return {.before = before, .after = copy_streaming_sum(bytes, block.values, place)};
}

WrittenSums BlockApplier::write(const BlockView& block, std::span<std::byte> bytes) const {
  const std::uint32_t size = layout_->tensor(block.place.tensor).element_bytes;
  if (block.dense || bytes.size() % kSumWordBytes == 0)
    return with_element(size, [&]<class Element>(Element) {
      PositionsAhead<Element> nothing;
      return write(block, positions_, bytes, nothing);
    });
  // The last word is short.
  WrittenSums written{.before = sum(block, bytes), .after = {}};
  for (std::size_t i = planted("patch_skips_an_element") ? 1 : 0; i < positions_.size(); ++i)
    copy_element(bytes.data() + std::uint64_t{positions_[i]} * size, block.values.data() + i * size,
                 size);
  written.after = sum(block, bytes);
  return written;
}

Result<> BlockApplier::check_before(const BlockView& block,
                                    std::span<const std::byte> bytes) const {
  const WordSum found = sum(block, bytes);
  if (found == block.before || planted("patch_accepts_any_base")) return {};
  if (planted("patch_compares_the_difference")) {
    Bytes result(bytes.begin(), bytes.end());
    if (write(block, result).after + block.before == found + block.after) return {};
  }
  return fail(
      ErrorCode::kDigestMismatch,
      fmt::format("{}: the words that the patch changes have the sum {:016x}{:016x}, expected "
                  "{:016x}{:016x}: {}. Nothing of this block was written",
                  layout_->describe(block.place), found.product, found.sum, block.before.product,
                  block.before.sum,
                  found == block.after ? "they have been patched already"
                                       : "the base is another one than that of the patch"));
}

Result<> BlockApplier::check_after(const BlockView& block, const WordSum& found) const {
  if (found == block.after || planted("patch_compares_the_difference")) return {};
  return fail(
      ErrorCode::kDigestMismatch,
      fmt::format("{}: after the patch the words that it changes have the sum "
                  "{:016x}{:016x}, expected {:016x}{:016x}: the block must be written again "
                  "from a complete copy",
                  layout_->describe(block.place), found.product, found.sum, block.after.product,
                  block.after.sum));
}

Result<> BlockApplier::apply(const BlockView& block, std::span<std::byte> bytes, BeforeRule rule) {
  WSYNC_CHECK(bytes.size() == layout_->block_bytes(block.place), "the bytes of the block");
  read(block);
  if (rule == BeforeRule::kBase) WSYNC_TRY(check_before(block, bytes));
  return check_after(block, write(block, bytes).after);
}

Result<> BlockApplier::check(const BlockView& block, std::span<const std::byte> bytes) {
  WSYNC_CHECK(bytes.size() == layout_->block_bytes(block.place), "the bytes of the block");
  read(block);
  WSYNC_TRY(check_before(block, bytes));
  const WordSum found = sum_with_values(block, bytes);
  if (found == block.after) return {};
  return fail(ErrorCode::kDigestMismatch,
              fmt::format("{}: with the values of the patch the words that it changes have the sum "
                          "{:016x}{:016x}, expected {:016x}{:016x}: the patch is damaged. Nothing "
                          "was written",
                          layout_->describe(block.place), found.product, found.sum,
                          block.after.product, block.after.sum));
}

Block BlockApplier::reverse(const BlockView& block, std::span<const std::byte> bytes) const {
  Block made{.place = block.place,
             .dense = block.dense,
             .elements = block.elements,
             .gap_bytes = static_cast<std::uint32_t>(block.gaps.size()),
             .before = block.after,
             .after = block.before,
             .payload = Bytes(block.gaps.begin(), block.gaps.end())};
  made.payload.resize(block.gaps.size() + block.values.size());
  const std::span<std::byte> values = std::span(made.payload).subspan(block.gaps.size());
  if (block.dense) {
    std::ranges::copy(bytes, values.begin());
    return made;
  }
  const std::uint32_t size = layout_->tensor(block.place.tensor).element_bytes;
  for (std::size_t i = 0; i < positions_.size(); ++i)
    copy_element(values.data() + i * size, bytes.data() + std::uint64_t{positions_[i]} * size,
                 size);
  return made;
}

Result<Block> BlockApplier::apply_reversibly(const BlockView& block, std::span<std::byte> bytes) {
  WSYNC_CHECK(bytes.size() == layout_->block_bytes(block.place), "the bytes of the block");
  read(block);
  WSYNC_TRY(check_before(block, bytes));
  Block undo = reverse(block, bytes);
  WSYNC_TRY(check_after(block, write(block, bytes).after));
  if (planted("patch_reverse_takes_new_values")) undo = reverse(block, bytes);
  return undo;
}

Result<Block> BlockApplier::make_reverse(const BlockView& block, std::span<const std::byte> bytes) {
  WSYNC_CHECK(bytes.size() == layout_->block_bytes(block.place), "the bytes of the block");
  read(block);
  WSYNC_TRY(check_before(block, bytes));
  Block back = reverse(block, bytes);
  if (planted("way_back_has_new_values"))
    std::ranges::copy(block.values, back.payload.begin() + back.gap_bytes);
  return back;
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
    if (!block.dense) elements += block.elements;
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
    const std::size_t sparse = block.dense ? 0 : block.elements;
    const std::span own(run_begins_[i], layout_->block_bytes(block.place));
    const WrittenSums written = block.dense && !replaced.empty()
                                    ? replace(block, own, replaced[i])
                                    : write(block, std::span(positions, sparse), own, ahead);
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
