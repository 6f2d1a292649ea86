// The index of a patch, which comes before its buckets: from which content it leads to which, how
// long each bucket is and what its bytes are, and which tensors change. README.md has its bytes.
//
// Immutable once created; may be read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/weights/patch/layout.h"

namespace wsync::patch {

// From which content to which, by content digests (content_digest.h).
struct Link {
  Digest layout;  // of the manifest of both
  Digest base;
  Digest target;
  std::uint64_t model_bytes = 0;
  friend bool operator==(const Link&, const Link&) = default;
};

struct BucketEntry {
  std::uint64_t bytes = 0;
  std::uint64_t elements = 0;         // values in all of its blocks
  std::uint32_t blocks = 0;           // never 0
  std::uint32_t directory_bytes = 0;  // of the entries of its blocks, with which it begins
  BlockPlace first;
  BlockPlace last;
  Digest digest;  // XXH3-128 of its bytes
  friend bool operator==(const BucketEntry&, const BucketEntry&) = default;
};

struct TensorEntry {
  std::uint32_t tensor = 0;  // index in the manifest
  std::uint32_t blocks = 0;  // that change, never 0
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

// Bytes of an index that say how long it is.
inline constexpr std::uint64_t kIndexHeadBytes = 104;

class Index {
 public:
  // The lists are in ascending order of blocks and tensors, and belong together.
  Index(const Link& link, std::vector<BucketEntry> buckets, std::vector<TensorEntry> tensors);

  // Returns the size of an index by its first kIndexHeadBytes. kInvalidInput if there are fewer, if
  // these are not the beginning of a patch, or if it has another version of the format.
  [[nodiscard]] static Result<std::uint64_t> size_of(std::span<const std::byte> head);
  // Reads and checks all of it. kInvalidInput with the broken rule; kDigestMismatch if its own
  // digest is another one.
  [[nodiscard]] static Result<Index> parse(std::span<const std::byte> bytes);
  [[nodiscard]] Bytes encode() const;
  // kInvalidInput unless the patch is one for this manifest: layout digest, tensors and blocks.
  [[nodiscard]] Result<> check(const Layout& layout) const;

  [[nodiscard]] const Link& link() const noexcept { return link_; }
  [[nodiscard]] std::span<const BucketEntry> buckets() const noexcept { return buckets_; }
  // The tensors that change. All others are equal in base and target.
  [[nodiscard]] std::span<const TensorEntry> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::uint64_t blocks() const noexcept { return blocks_; }
  // Values in all blocks. Those of sparse blocks are exactly the elements that change.
  [[nodiscard]] std::uint64_t elements() const noexcept { return elements_; }
  // Bytes of all buckets.
  [[nodiscard]] std::uint64_t body_bytes() const noexcept { return body_bytes_; }
  // Bytes of the buckets before this one.
  [[nodiscard]] std::uint64_t bucket_offset(std::size_t bucket) const { return offsets_[bucket]; }
  // Blocks of the buckets before this one.
  [[nodiscard]] std::uint64_t blocks_before(std::size_t bucket) const {
    return blocks_before_[bucket];
  }
  // Which entry of tensors() has block `block`, counted over the whole patch, and how many blocks
  // of that tensor come before it.
  struct TensorBlock {
    std::size_t entry = 0;
    std::uint64_t block = 0;
  };
  [[nodiscard]] TensorBlock tensor_block(std::uint64_t block) const;

  friend bool operator==(const Index& a, const Index& b) {
    return a.link_ == b.link_ && a.buckets_ == b.buckets_ && a.tensors_ == b.tensors_;
  }

 private:
  [[nodiscard]] Result<> check_order() const;
  [[nodiscard]] Result<> check_sequence() const;
  Link link_;
  std::vector<BucketEntry> buckets_;
  std::vector<TensorEntry> tensors_;
  std::vector<std::uint64_t> offsets_;        // of the buckets
  std::vector<std::uint64_t> blocks_before_;  // likewise
  std::vector<std::uint64_t> tensor_ends_;    // blocks up to the end of each tensor
  std::uint64_t blocks_ = 0;
  std::uint64_t elements_ = 0;
  std::uint64_t body_bytes_ = 0;
};

}  // namespace wsync::patch
