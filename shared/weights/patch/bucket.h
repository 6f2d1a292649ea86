// The strict reader of the buckets of a patch. README.md has their bytes.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/index.h"

namespace wsync::patch {

// Reads and checks one bucket, whole: its length and digest, the order and places of its blocks,
// and every position in them. Nobody needs another bucket for it. The index has passed
// check(layout). The views point into `bytes`. kDigestMismatch if the bytes are not those of the
// index; kInvalidInput with bucket, block and rule. The values themselves are not compared with the
// blocks' sums, which are of words that a patch does not hold: BlockApplier does that.
[[nodiscard]] Result<std::vector<BlockView>> parse_bucket(const Index& index, const Layout& layout,
                                                          std::size_t bucket,
                                                          std::span<const std::byte> bytes);

// Reads the positions of a sparse block one by one, as numbers of elements in the block. Nothing is
// read outside of block.gaps, whatever is in them. Not thread-safe; the gaps are borrowed.
class PositionReader {
 public:
  PositionReader() = default;
  explicit PositionReader(const BlockView& block) noexcept
      : at_(block.gaps.data()), end_(at_ + block.gaps.size()) {}

  // The next position. If a gap is not valid or missing, is_broken() is true from then on, and this
  // is a position that no block has.
  std::uint64_t next() noexcept {
    if (end_ - at_ < 2) [[unlikely]]
      return next_slowly();
    // One or two bytes, without a branch between them.
    const auto low = static_cast<std::uint64_t>(at_[0]);
    const auto high = static_cast<std::uint64_t>(at_[1]);
    const std::uint64_t two = low >> 7U;
    if ((two & static_cast<std::uint64_t>(high - 1 >= 0x7f)) != 0) [[unlikely]]
      return next_slowly();
    const std::uint64_t position = next_ + (low & 0x7fU) + ((high << 7U) & (0 - two));
    at_ += 1 + two;
    next_ = position + 1;
    return position;
  }
  [[nodiscard]] bool is_broken() const noexcept { return next_ >= kBroken; }
  [[nodiscard]] std::size_t bytes_left() const noexcept {
    return static_cast<std::size_t>(end_ - at_);
  }

 private:
  static constexpr std::uint64_t kBroken = std::uint64_t{1} << 62U;
  // For a gap of three bytes, the last one, and one that is not valid.
  std::uint64_t next_slowly() noexcept {
    *this = after_any(*this);
    return next_ - 1;
  }
  // The reader after its next gap. By value, so that compilers keep members of readers in
  // registers.
  [[nodiscard]] static PositionReader after_any(PositionReader reader) noexcept;
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  std::uint64_t next_ = 0;
};

// Reads the positions of a sparse block, as numbers of elements in the block, into `positions`,
// which has room for block.elements of them. kInvalidInput unless there is one for each value, each
// is below `block_elements`, and nothing is left over.
[[nodiscard]] Result<> read_positions(const BlockView& block, std::uint64_t block_elements,
                                      std::span<std::uint32_t> positions);

// Checks the positions as read_positions() does, in a fraction of the time, and keeps none of them.
[[nodiscard]] Result<> check_positions(const BlockView& block, std::uint64_t block_elements);

}  // namespace wsync::patch
