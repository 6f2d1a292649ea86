#include "shared/weights/patch/bucket.h"

#include "shared/base/format.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

// Reads the entries of a bucket's directory one after the other.
class DirectoryReader {
 public:
  DirectoryReader(const Layout& layout, std::span<const std::byte> directory)
      : layout_(layout), bytes_(directory) {}

  // The next block, without its gaps and values, whose sizes are known then.
  struct Entry {
    BlockView block;
    std::uint64_t gap_bytes = 0;
    std::uint64_t value_bytes = 0;
  };
  // Errors name the rule alone.
  Result<Entry> next() {
    Entry entry;
    entry.block.place = WSYNC_TRY(next_place());
    const std::uint64_t block_bytes = layout_.block_bytes(entry.block.place);
    const std::uint32_t size = layout_.tensor(entry.block.place.tensor).element_bytes;
    const auto elements = take_varint(bytes_, block_bytes / size);
    if (!elements) return rule("the number of its elements is not valid");
    entry.block.dense = *elements == 0;
    entry.block.elements =
        static_cast<std::uint32_t>(*elements != 0 ? *elements : block_bytes / size);
    entry.value_bytes = std::uint64_t{entry.block.elements} * size;
    if (!entry.block.dense) {
      const auto gap_bytes = take_varint(bytes_, block_bytes);
      if (!gap_bytes) return rule("the length of its gaps is not valid");
      entry.gap_bytes = *gap_bytes;
      if (entry.gap_bytes + entry.value_bytes >= block_bytes)
        return rule("it is sparse, although dense it would not be larger");
    }
    ByteReader sums(bytes_);
    for (WordSum* sum : {&entry.block.before, &entry.block.after}) {
      sum->product = sums.get<std::uint64_t>("product");
      sum->sum = sums.get<std::uint64_t>("sum");
    }
    if (!sums.ok()) return rule("the directory ends within its sums");
    bytes_ = bytes_.subspan(kSumBytes);
    return entry;
  }
  [[nodiscard]] std::size_t remaining() const { return bytes_.size(); }

 private:
  static tl::unexpected<Error> rule(std::string_view text) {
    return fail(ErrorCode::kInvalidInput, std::string(text));
  }
  Result<BlockPlace> next_place() {
    const auto tensor_gap = take_varint(bytes_, limits::kTensorCount);
    if (!tensor_gap) return rule("the number of its tensor is not valid");
    const auto block_gap = take_varint(bytes_, limits::kModelBytesMax / kBlockBytes);
    if (!block_gap) return rule("its number in the tensor is not valid");
    BlockPlace place{.tensor = static_cast<std::uint32_t>(*tensor_gap),
                     .block = static_cast<std::uint32_t>(*block_gap)};
    place.tensor += last_.tensor;
    if (has_last_ && *tensor_gap == 0) place.block += last_.block + 1;
    if (layout_.block_bytes(place) == 0)
      return rule(fmt::format("the model has no block {} of tensor {}", place.block, place.tensor));
    last_ = place;
    has_last_ = true;
    return place;
  }
  const Layout& layout_;
  std::span<const std::byte> bytes_;
  BlockPlace last_;  // the one before, if there is one
  bool has_last_ = false;
};

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
  TensorSequence sequence(index, index.blocks_before(bucket));
  DirectoryReader directory(layout, bytes.first(entry.directory_bytes));
  auto payload = bytes.subspan(entry.directory_bytes);
  std::vector<BlockView> blocks;
  std::vector<std::uint32_t> positions;
  std::uint64_t elements = 0;
  for (std::uint32_t i = 0; i < entry.blocks; ++i) {
    const auto found = directory.next();
    if (!found) return broken(fmt::format("block {}: {}", i, found.error().message()));
    BlockView block = found->block;
    const std::string place = layout.describe(block.place);
    if (!sequence.next_is(block.place.tensor))
      return broken(fmt::format("{}: the index has no such block here", place));
    if (found->gap_bytes + found->value_bytes > payload.size())
      return broken(fmt::format("{}: it needs {} bytes, {} are left", place,
                                found->gap_bytes + found->value_bytes, payload.size()));
    block.gaps = payload.first(found->gap_bytes);
    block.values = payload.subspan(found->gap_bytes, found->value_bytes);
    payload = payload.subspan(found->gap_bytes + found->value_bytes);
    if (!block.dense) {
      const std::uint32_t size = layout.tensor(block.place.tensor).element_bytes;
      if (const auto read =
              read_positions(block, layout.block_bytes(block.place) / size, positions);
          !read)
        return broken(fmt::format("{}: {}", place, read.error().message()));
    }
    elements += block.elements;
    blocks.push_back(block);
  }
  if (directory.remaining() != 0 || !payload.empty())
    return broken(fmt::format("{} bytes of its directory and {} bytes of values are left over",
                              directory.remaining(), payload.size()));
  if (blocks.front().place != entry.first || blocks.back().place != entry.last ||
      elements != entry.elements)
    return broken(
        "its first block, its last block or the number of its elements is not that of "
        "the index");
  return blocks;
}

}  // namespace wsync::patch
