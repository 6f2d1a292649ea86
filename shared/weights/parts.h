// Parts: which process serves which bytes of a version, if the ranks of its trainer are on several
// hosts. Part 0 is what rank 0 serves: its own bytes, and those of the ranks on its host. Every
// other part is what one rank of another host has. No process has the whole model.
//
// A part is a list of ranges of tensors. All bytes that no range names are of part 0. Ranges begin
// and end at words of the sums (shared/base/word_sum.h), so that each part can be summed by itself.
//
// Immutable once created; may be read from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync {

// Bytes [begin, end) of a tensor, of another part than the first.
struct PartRange {
  std::uint32_t tensor = 0;  // index in the manifest
  std::uint32_t part = 1;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const PartRange&, const PartRange&) = default;
};

class Parts {
 public:
  Parts() = default;  // one part, which has all bytes
  // `ranges` in any order. kInvalidInput, with the tensor: if a range is empty, outside of its
  // tensor or overlaps another one; if it begins or ends inside a word; if its part is 0 or above
  // limits::kTrainerRankCount; if there are more than limits::kPartRangeCount.
  [[nodiscard]] static Result<Parts> create(const Manifest& manifest,
                                            std::vector<PartRange> ranges);

  // Number of parts, with part 0; at least 1. A part may have no bytes.
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  // The ranges of one tensor, in the order of their bytes.
  [[nodiscard]] std::span<const PartRange> of_tensor(std::uint32_t tensor) const;
  // All ranges, in manifest order.
  [[nodiscard]] std::span<const PartRange> ranges() const noexcept { return ranges_; }

  // Nothing is written for one part.
  void encode(ByteWriter& writer) const;
  // Reads the output of encode(), which is all that `bytes` has. kInvalidInput as create(), and if
  // bytes are left over.
  [[nodiscard]] static Result<Parts> decode(const Manifest& manifest,
                                            std::span<const std::byte> bytes);
  friend bool operator==(const Parts&, const Parts&) = default;

 private:
  std::vector<PartRange> ranges_;
  std::uint32_t count_ = 1;
};

}  // namespace wsync
