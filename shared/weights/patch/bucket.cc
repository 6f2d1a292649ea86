#include "shared/weights/patch/bucket.h"

#include "shared/base/format.h"
#include "shared/weights/patch/directory.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

// Walks through the tensors of an index, block by block.
class TensorSequence {
 public:
  // Begins with block number `first` of all.
  TensorSequence(const Index& index, std::uint64_t first)
      : tensors_(index.tensors()),
        at_(index.tensor_block(first).entry),
        done_(index.tensor_block(first).block) {}
  // Whether the next block is one of this tensor, as the index says.
  bool next_is(std::uint32_t tensor) {
    if (at_ == tensors_.size() || tensors_[at_].tensor != tensor) return false;
    if (++done_ == tensors_[at_].blocks) {
      done_ = 0;
      ++at_;
    }
    return true;
  }

 private:
  std::span<const TensorEntry> tensors_;
  std::size_t at_;
  std::uint64_t done_;  // blocks of this tensor
};

Result<> check_bytes(const BucketEntry& entry, std::span<const std::byte> bytes,
                     std::string_view name) {
  if (bytes.size() != entry.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected {} bytes, found {}", name, entry.bytes, bytes.size()));
  if (const Digest found = digest_of(bytes); found != entry.digest)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("{} is damaged: its bytes have the digest {}, expected {}", name,
                            found.to_string(), entry.digest.to_string()));
  return {};
}

}  // namespace

Result<> read_positions(const BlockView& block, std::uint64_t block_elements,
                        std::vector<std::uint32_t>& positions) {
  positions.resize(block.elements);
  const std::byte* at = block.gaps.data();
  const std::byte* const end = at + block.gaps.size();
  std::uint64_t next = 0;
  for (std::uint32_t& position : positions) {
    // One or two bytes, without a branch between them.
    const std::uint64_t low = end - at >= 2 ? static_cast<std::uint64_t>(at[0]) : 0x80;
    const std::uint64_t high = end - at >= 2 ? static_cast<std::uint64_t>(at[1]) : 0;
    const std::uint64_t two = low >> 7U;
    if (two == 0 || (high != 0 && high < 0x80)) {
      next += (low & 0x7fU) | (two != 0 ? high << 7U : 0);
      at += 1 + two;
    } else {
      std::span<const std::byte> rest(at, end);
      const auto gap = take_varint(rest, block_elements);
      if (!gap) return fail(ErrorCode::kInvalidInput, "a gap between its positions is not valid");
      next += *gap;
      at = rest.data();
    }
    if (next >= block_elements)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("position {} is behind its last element, {}", next, block_elements - 1));
    position = static_cast<std::uint32_t>(next++);
  }
  if (at != end)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} bytes are left over after its positions", end - at));
  return {};
}

Result<std::vector<BlockView>> parse_bucket(const Index& index, const Layout& layout,
                                            std::size_t bucket, std::span<const std::byte> bytes) {
  const BucketEntry& entry = index.buckets()[bucket];
  const std::string name =
      fmt::format("bucket {} of {} of the patch", bucket + 1, index.buckets().size());
  WSYNC_TRY(check_bytes(entry, bytes, name));
  const auto broken = [&name](std::string_view rule) {
    return fail(ErrorCode::kInvalidInput, fmt::format("{}: {}", name, rule));
  };
  TensorSequence tensors(index, index.blocks_before(bucket));
  BlockSequence sequence(layout, bytes.first(entry.directory_bytes),
                         bytes.subspan(entry.directory_bytes));
  std::vector<BlockView> blocks;
  std::uint64_t elements = 0;
  for (std::uint32_t i = 0; i < entry.blocks; ++i) {
    const auto block = sequence.next();
    if (!block) return broken(fmt::format("block {}: {}", i, block.error().message()));
    if (!tensors.next_is(block->place.tensor))
      return broken(
          fmt::format("{}: the index has no such block here", layout.describe(block->place)));
    elements += block->elements;
    blocks.push_back(*block);
  }
  if (sequence.directory_left() != 0 || sequence.payload_left() != 0)
    return broken(fmt::format("{} bytes of its directory and {} bytes of values are left over",
                              sequence.directory_left(), sequence.payload_left()));
  if (blocks.front().place != entry.first || blocks.back().place != entry.last ||
      elements != entry.elements)
    return broken(
        "its first block, its last block or the number of its elements is not that of "
        "the index");
  return blocks;
}

}  // namespace wsync::patch
