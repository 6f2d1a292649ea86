#include "shared/weights/patch/bucket.h"

#include <algorithm>
#include <cstring>

#include "shared/base/format.h"
#include "shared/base/planted.h"
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

constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighBits = 0x8080808080808080;
constexpr std::uint64_t kEvenBytes = 0x00ff00ff00ff00ff;

// Counts and adds gaps, eight bytes at a time. A byte adds its seven low bits at the place that the
// bytes before it in its gap give it. So nothing but their high bits is carried from one byte to
// the next. A block has at most 2^18 elements, so a gap has at most three bytes.
class GapSums {
 public:
  void add(std::uint64_t eight) noexcept {
    // In the high bit of each byte: its gap goes on; the byte before goes on; both bytes before do.
    const std::uint64_t goes_on = eight & kHighBits;
    const std::uint64_t second = goes_on << 8U | second_;
    const std::uint64_t third = second & (second << 8U | third_);
    second_ = goes_on >> 56U;
    third_ = second >> 56U;
    const std::uint64_t low = eight & ~kHighBits;
    const std::uint64_t is_not_zero = ((low + ~kHighBits) | eight) & kHighBits;
    // A fourth byte, or a last one that adds nothing.
    broken_ |= (third & goes_on) | (second & ~is_not_zero);
    ends_ += (goes_on ^ kHighBits) >> 7U;
    low_ += pairs_of(low);
    low_of_second_ += pairs_of(low & bytes_of(second));
    if (third != 0) total_ += (16384 - 128) * sum_of_lanes(pairs_of(low & bytes_of(third)));
    if (++added_ == kAddedMax) collect();
  }
  // Whether all gaps are as short as they can be.
  [[nodiscard]] bool is_good() const noexcept { return broken_ == 0; }
  // Adds what was not added yet, before gaps() and total().
  void collect() noexcept {
    gaps_ += sum_of_lanes(pairs_of(ends_));
    total_ += sum_of_lanes(low_) + 127 * sum_of_lanes(low_of_second_);
    ends_ = low_ = low_of_second_ = added_ = 0;
  }
  [[nodiscard]] std::uint64_t gaps() const noexcept { return gaps_; }
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

 private:
  // So often the largest sums of two bytes fit into 16 bits, with those of three other lanes.
  static constexpr std::uint64_t kAddedMax = 64;
  static_assert(kAddedMax * 2 * 127 * 4 < 1U << 16U);

  // All bits of each byte whose high bit is set.
  static std::uint64_t bytes_of(std::uint64_t high_bits) noexcept {
    return (high_bits >> 7U) * 0xff;
  }
  // The sums of neighbours, in four lanes of 16 bits.
  static std::uint64_t pairs_of(std::uint64_t eight) noexcept {
    return (eight & kEvenBytes) + ((eight >> 8U) & kEvenBytes);
  }
  static std::uint64_t sum_of_lanes(std::uint64_t lanes) noexcept {
    return (lanes * 0x0001000100010001) >> 48U;
  }
  std::uint64_t second_ = 0;
  std::uint64_t third_ = 0;
  std::uint64_t broken_ = 0;
  std::uint64_t ends_ = 0;  // of each of the eight bytes: how many were the last one of a gap
  std::uint64_t low_ = 0;
  std::uint64_t low_of_second_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t gaps_ = 0;
  std::uint64_t total_ = 0;
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

PositionReader PositionReader::after_any(PositionReader reader) noexcept {
  std::span<const std::byte> rest(reader.at_, reader.end_);
  const auto gap = take_varint(rest, kBlockBytes);
  if (gap) {
    reader.next_ += *gap + 1;
    reader.at_ = rest.data();
  } else {
    reader.next_ = kBroken;
    reader.at_ = reader.end_;
  }
  return reader;
}

Result<> read_positions(const BlockView& block, std::uint64_t block_elements,
                        std::span<std::uint32_t> positions) {
  PositionReader reader(block);
  for (std::uint32_t& position : positions) {
    const std::uint64_t next = reader.next();
    if (reader.is_broken())
      return fail(ErrorCode::kInvalidInput, "a gap between its positions is not valid");
    if (next >= block_elements)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("position {} is behind its last element, {}", next, block_elements - 1));
    position = static_cast<std::uint32_t>(next);
  }
  if (reader.bytes_left() != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} bytes are left over after its positions", reader.bytes_left()));
  return {};
}

Result<> check_positions(const BlockView& block, std::uint64_t block_elements) {
  GapSums sums;
  std::span<const std::byte> rest = block.gaps;
  for (; rest.size() >= sizeof(std::uint64_t); rest = rest.subspan(sizeof(std::uint64_t))) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, rest.data(), sizeof eight);
    sums.add(eight);
  }
  // Bytes of 1 in place of those that are missing are gaps of 1.
  std::uint64_t last = kOnes;
  std::ranges::copy(rest, std::as_writable_bytes(std::span(&last, 1)).begin());
  sums.add(last);
  sums.collect();
  const std::uint64_t added = sizeof last - rest.size();
  const bool ends = !block.gaps.empty() && block.gaps.back() < std::byte{0x80};
  if (ends && sums.is_good() && sums.gaps() == block.elements + added &&
      (sums.total() + block.elements <= block_elements + added || planted("patch_ends_anywhere")))
    return {};
  // The careful reader says what is wrong.
  std::vector<std::uint32_t> positions(block.elements);
  return read_positions(block, block_elements, positions);
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
