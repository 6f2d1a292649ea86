// LeafSummer: sums the leaves of a bucket while its bytes arrive, in slices of any size, so that
// they are read while they are in the cache. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "shared/base/stream_copy.h"
#include "shared/weights/leaf_table.h"

namespace wsync::transport::tcp {

class LeafSummer {
 public:
  LeafSummer() = default;
  // `leaves` lie in the bucket, which begins at `offset` of the arena. Both spans are borrowed. The
  // leaves are read where they belong in the arena, so that a bucket at another place is found.
  LeafSummer(std::span<const LeafPlace> leaves, std::uint64_t offset,
             std::span<const std::byte> arena)
      : leaves_(leaves), offset_(offset), arena_(arena), sums_(leaves.size()) {}

  // The first `bytes` bytes of the bucket have arrived.
  void advance(std::uint64_t bytes) {
    for (; leaf_ < leaves_.size(); ++leaf_, done_ = 0) {
      const LeafPlace& leaf = leaves_[leaf_];
      const std::uint64_t begin = leaf.arena_offset - offset_;
      if (bytes < begin) return;
      const bool is_complete = bytes - begin >= leaf.bytes;
      // Only the end of a leaf may cut a word.
      const std::uint64_t until =
          is_complete ? leaf.bytes : (bytes - begin) / kSumWordBytes * kSumWordBytes;
      if (until > done_)
        sums_[leaf_] +=
            word_sum(arena_.subspan(leaf.arena_offset + done_, until - done_),
                     {.seed = leaf.place.seed, .position = leaf.place.position + done_});
      done_ = until;
      if (!is_complete) return;
    }
  }
  // The sums of all leaves, once all bytes have arrived.
  [[nodiscard]] std::vector<WordSum> take() { return std::move(sums_); }

 private:
  std::span<const LeafPlace> leaves_;
  std::uint64_t offset_ = 0;
  std::span<const std::byte> arena_;
  std::vector<WordSum> sums_;
  std::size_t leaf_ = 0;    // the first that is not complete
  std::uint64_t done_ = 0;  // bytes of it that have been summed
};

}  // namespace wsync::transport::tcp
