// The content digest: what "these are the bytes of version V" means. Independent of buckets and
// plans, so that any two parties can compare.
//
//   leaf    XXH3-128 of each limits::kLeafBytes of a tensor (the last leaf may be shorter)
//   tensor  XXH3-128 of the tensor's bytes as a little-endian u64, then its leaves' canonical 16
//           bytes in order
//   root    XXH3-128 of the number of tensors as a little-endian u64, then the tensors' canonical
//           16 bytes in manifest order
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync {

// Leaves of a tensor of that many bytes; 0 for an empty one.
[[nodiscard]] std::uint64_t leaf_count(std::uint64_t tensor_bytes) noexcept;
// The tensor digest of its leaf digests, which must be leaf_count(tensor_bytes) many.
[[nodiscard]] Digest tensor_digest(std::uint64_t tensor_bytes, std::span<const Digest> leaves);
// The tensor digest of a tensor's bytes.
[[nodiscard]] Digest tensor_digest(std::span<const std::byte> tensor);
// The root over tensor digests in manifest order.
[[nodiscard]] Digest root_digest(std::span<const Digest> tensors);

struct ContentDigests {
  std::vector<Digest> tensors;  // in manifest order
  Digest root;
  friend bool operator==(const ContentDigests&, const ContentDigests&) = default;
};

// Collects leaf digests in any order. Thread: several threads may add at the same time as long as
// no two add the same leaf; finish() after all of them are done.
class ContentDigester {
 public:
  // The manifest is borrowed and must outlive this object.
  explicit ContentDigester(const Manifest& manifest);
  // Digests the leaves of bytes [offset, offset + bytes.size()) of a tensor. kInvalidInput unless
  // the range is inside the tensor, starts at a leaf and ends at a leaf or at the tensor's end.
  [[nodiscard]] Result<> add(std::uint32_t tensor, std::uint64_t offset,
                             std::span<const std::byte> bytes);
  // The digest of one leaf, computed elsewhere. kInvalidInput when there is no such leaf. A leaf
  // that is added again replaces the earlier one.
  [[nodiscard]] Result<> add_leaf(std::uint32_t tensor, std::uint64_t leaf, const Digest& digest);
  // The leaves of one tensor so far; default digests where none was added.
  [[nodiscard]] std::span<const Digest> leaves(std::uint32_t tensor) const;
  // kDigestMismatch naming the first tensor with a leaf that was never added.
  [[nodiscard]] Result<ContentDigests> finish() const;

 private:
  const Manifest* manifest_;
  std::vector<std::uint64_t> first_leaf_;  // of each tensor; one entry more than tensors
  std::vector<Digest> leaves_;
  std::vector<std::uint8_t> added_;  // one byte for each leaf: threads write neighbours
};

}  // namespace wsync
