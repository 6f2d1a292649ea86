#include "shared/weights/patch/leaf_changes.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/word_sum.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/directory.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/merge.h"

namespace wsync::patch {
namespace {

constexpr std::size_t kHeadBytes = 8;  // number of blocks, bytes of the directory

// A block, and where it lies in an arena.
struct PlacedBlock {
  BlockPlace place;
  std::uint64_t arena_offset = 0;
  std::uint64_t bytes = 0;
};

// A leaf consists of whole blocks (format.h).
std::vector<PlacedBlock> blocks_of(const Layout& layout, std::span<const LeafPlace> leaves) {
  std::vector<PlacedBlock> blocks;
  for (const LeafPlace& leaf : leaves)
    for (std::uint64_t at = 0; at < leaf.bytes; at += kBlockBytes) {
      const BlockPlace place{
          .tensor = leaf.tensor,
          .block = static_cast<std::uint32_t>((leaf.place.position + at) / kBlockBytes)};
      blocks.push_back({.place = place,
                        .arena_offset = leaf.arena_offset + at,
                        .bytes = layout.block_bytes(place)});
    }
  return blocks;
}

bool lies_in(const BlockPlace& place, const LeafPlace& leaf) {
  const std::uint64_t offset = Layout::offset(place);
  return place.tensor == leaf.tensor && offset >= leaf.place.position &&
         offset < leaf.place.position + leaf.bytes;
}

// The blocks of these leaves lie one after the other in an arena, as in their tensor.
std::uint64_t arena_offset(const BlockPlace& place, const LeafPlace& leaf) {
  return leaf.arena_offset + (Layout::offset(place) - leaf.place.position);
}

// Where the bytes of each block lie in an arena. All lie in these leaves.
template <class Byte>
std::vector<Byte*> begins_in(std::span<Byte> arena, std::span<const LeafPlace> leaves,
                             std::span<const BlockView> blocks) {
  std::vector<Byte*> begins;
  begins.reserve(blocks.size());
  for (const LeafPlace& leaf : leaves)
    while (begins.size() < blocks.size() && lies_in(blocks[begins.size()].place, leaf))
      begins.push_back(arena.data() + arena_offset(blocks[begins.size()].place, leaf));
  WSYNC_CHECK(begins.size() == blocks.size(), "changes are read before they are used");
  return begins;
}

// Writes the format: head, directory, payloads.
class LeafChangesWriter {
 public:
  // In ascending order.
  void add(const Block& block) {
    WSYNC_CHECK(!last_ || *last_ < block.place, "blocks are written in ascending order");
    put_entry(directory_, block, last_);
    last_ = block.place;
    ++count_;
    payload_.insert(payload_.end(), block.payload.begin(), block.payload.end());
  }
  [[nodiscard]] std::size_t size() const noexcept {
    return kHeadBytes + directory_.size() + payload_.size();
  }
  [[nodiscard]] Bytes finish() const {
    ByteWriter head;
    head.put(count_);
    head.put(static_cast<std::uint32_t>(directory_.size()));
    Bytes bytes;
    bytes.reserve(size());
    bytes.insert(bytes.end(), head.buffer().begin(), head.buffer().end());
    bytes.insert(bytes.end(), directory_.begin(), directory_.end());
    bytes.insert(bytes.end(), payload_.begin(), payload_.end());
    return bytes;
  }

 private:
  Bytes directory_;
  Bytes payload_;
  std::optional<BlockPlace> last_;
  std::uint32_t count_ = 0;
};

}  // namespace

std::optional<Bytes> LeafChangesMaker::make(const Layout& layout, std::span<const LeafPlace> leaves,
                                            std::span<const std::byte> base,
                                            std::span<const std::byte> target,
                                            std::uint64_t max_bytes) {
  const std::vector<PlacedBlock> blocks = blocks_of(layout, leaves);
  const auto make_block = [&](const PlacedBlock& block) {
    return maker_.make(layout, block.place, base.subspan(block.arena_offset, block.bytes),
                       target.subspan(block.arena_offset, block.bytes));
  };
  std::uint64_t total_bytes = 0;
  for (const PlacedBlock& block : blocks) total_bytes += block.bytes;
  const auto is_too_large = [&](const PlacedBlock& block) {
    const auto made = make_block(block);
    return made && static_cast<double>(made->payload.size()) * static_cast<double>(total_bytes) >
                       static_cast<double>(max_bytes) * static_cast<double>(block.bytes);
  };
  if (blocks.size() > 3 && is_too_large(blocks[blocks.size() / 3]) &&
      is_too_large(blocks[blocks.size() * 2 / 3]))
    return std::nullopt;

  LeafChangesWriter writer;
  for (const PlacedBlock& block : blocks) {
    if (const auto made = make_block(block)) writer.add(*made);
    if (writer.size() > max_bytes) return std::nullopt;
  }
  if (writer.size() > max_bytes) return std::nullopt;
  return writer.finish();
}

Bytes write_leaf_changes(std::span<const Block> blocks) {
  LeafChangesWriter writer;
  for (const Block& block : blocks) writer.add(block);
  return writer.finish();
}

Result<std::vector<BlockView>> read_leaf_changes(const Layout& layout,
                                                 std::span<const LeafPlace> leaves,
                                                 std::span<const std::byte> bytes) {
  const auto broken = [](std::string_view rule) {
    return fail(ErrorCode::kInvalidInput, fmt::format("changes of a bucket: {}", rule));
  };
  if (bytes.size() < kHeadBytes)
    return broken(fmt::format("they begin with {} bytes, found {}", kHeadBytes, bytes.size()));
  ByteReader head(bytes.first(kHeadBytes));
  const auto count = head.get<std::uint32_t>("number of blocks");
  const auto directory_bytes = head.get<std::uint32_t>("bytes of the directory");
  bytes = bytes.subspan(kHeadBytes);
  if (directory_bytes > bytes.size())
    return broken(
        fmt::format("their directory has {} bytes, found {}", directory_bytes, bytes.size()));
  BlockSequence sequence(layout, bytes.first(directory_bytes), bytes.subspan(directory_bytes));
  std::vector<BlockView> blocks;
  auto leaf = leaves.begin();
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto block = sequence.next();
    if (!block) return broken(fmt::format("block {}: {}", i, block.error().message()));
    while (leaf != leaves.end() && !lies_in(block->place, *leaf)) ++leaf;
    if (leaf == leaves.end())
      return broken(
          fmt::format("{}: it does not lie in the bucket", layout.describe(block->place)));
    blocks.push_back(*block);
  }
  if (sequence.directory_left() != 0 || sequence.payload_left() != 0)
    return broken(fmt::format("{} bytes of their directory and {} bytes of values are left over",
                              sequence.directory_left(), sequence.payload_left()));
  return blocks;
}

Result<std::vector<WordSum>> apply_leaf_changes(const Layout& layout,
                                                std::span<const LeafPlace> leaves,
                                                std::span<const BlockView> changes,
                                                std::span<const std::byte> base,
                                                std::span<std::byte> into, BeforeRule rule) {
  BlockApplier applier(layout);
  std::vector<WordSum> sums;
  sums.reserve(leaves.size());
  auto change = changes.begin();
  for (const LeafPlace& leaf : leaves) {
    // Leaf by leaf, so that its bytes are in the cache when they are changed and summed.
    const auto bytes = into.subspan(leaf.arena_offset, leaf.bytes);
    std::memcpy(bytes.data(), base.data() + leaf.arena_offset, leaf.bytes);
    for (; change != changes.end() && lies_in(change->place, leaf); ++change) {
      const std::uint64_t at = Layout::offset(change->place) - leaf.place.position;
      WSYNC_TRY(applier.apply(*change, bytes.subspan(at, layout.block_bytes(change->place)), rule));
    }
    sums.push_back(word_sum(bytes, leaf.place));
  }
  WSYNC_CHECK(change == changes.end(), "changes are read before they are applied");
  return sums;
}

Result<std::vector<WordSum>> sum_leaf_changes(const Layout& layout,
                                              std::span<const LeafPlace> leaves,
                                              std::span<const BlockView> changes,
                                              std::span<const std::byte> base,
                                              std::span<const WordSum> base_sums) {
  WSYNC_CHECK(base_sums.size() == leaves.size(), "each leaf of the base has a sum");
  WSYNC_TRY(BlockApplier(layout).check(changes, begins_in(base, leaves, changes)));
  std::vector<WordSum> sums(base_sums.begin(), base_sums.end());
  auto change = changes.begin();
  for (std::size_t i = 0; i < leaves.size(); ++i)
    for (; change != changes.end() && lies_in(change->place, leaves[i]); ++change) {
      sums[i] -= change->before;
      sums[i] += change->after;
    }
  return sums;
}

Result<Bytes> exchange_leaf_changes(const Layout& layout, std::span<const LeafPlace> leaves,
                                    std::span<const BlockView> changes, std::span<std::byte> data) {
  LeafChangesWriter back;
  WSYNC_TRY(BlockApplier(layout).apply_reversibly(changes, begins_in(data, leaves, changes),
                                                  [&](const Block& block) { back.add(block); }));
  return back.finish();
}

Result<Bytes> reverse_leaf_changes(const Layout& layout, std::span<const LeafPlace> leaves,
                                   std::span<const BlockView> changes,
                                   std::span<const std::byte> base) {
  LeafChangesWriter back;
  WSYNC_TRY(BlockApplier(layout).make_reverse(changes, begins_in(base, leaves, changes),
                                              [&](const Block& block) { back.add(block); }));
  return back.finish();
}

Result<Bytes> merge_leaf_changes(const Layout& layout, std::span<const LeafPlace> leaves,
                                 std::span<const BlockView> first,
                                 std::span<const BlockView> second,
                                 std::span<const std::byte> middle) {
  LeafChangesWriter writer;
  auto a = first.begin();
  auto b = second.begin();
  for (const LeafPlace& leaf : leaves) {
    const auto is_here = [&](auto at, auto end) { return at != end && lies_in(at->place, leaf); };
    while (is_here(a, first.end()) || is_here(b, second.end())) {
      if (!is_here(b, second.end()) || (is_here(a, first.end()) && a->place < b->place)) {
        writer.add(copy_of(*a++));
      } else if (!is_here(a, first.end()) || b->place < a->place) {
        writer.add(copy_of(*b++));
      } else {
        const Block merged = WSYNC_TRY(merge_blocks(
            layout, *a, *b,
            middle.subspan(arena_offset(a->place, leaf), layout.block_bytes(a->place))));
        if (merged.before != merged.after) writer.add(merged);
        ++a;
        ++b;
      }
    }
  }
  WSYNC_CHECK(a == first.end() && b == second.end(), "changes are read before they are merged");
  return writer.finish();
}

}  // namespace wsync::patch
