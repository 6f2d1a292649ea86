// The content digest: it defines what "these are the bytes of version V" means. It does not depend
// on buckets and plans, so any two parties can compare it.
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

// Number of leaves of a tensor of that many bytes; 0 for an empty one.
[[nodiscard]] std::uint64_t leaf_count(std::uint64_t tensor_bytes) noexcept;
// Returns the tensor digest for its leaf digests. There must be leaf_count(tensor_bytes) of them.
[[nodiscard]] Digest tensor_digest(std::uint64_t tensor_bytes, std::span<const Digest> leaves);
// Returns the tensor digest of a tensor's bytes.
[[nodiscard]] Digest tensor_digest(std::span<const std::byte> tensor);
// Returns the root digest of the tensor digests, which are in manifest order.
[[nodiscard]] Digest root_digest(std::span<const Digest> tensors);

struct ContentDigests {
  std::vector<Digest> tensors;  // in manifest order
  Digest root;
  friend bool operator==(const ContentDigests&, const ContentDigests&) = default;
};

// Collects leaf digests in any order. Thread: several threads may add at the same time if no two
// add the same leaf. Call finish() after all of them have ended.
class ContentDigester {
 public:
  // The manifest is borrowed and must outlive this object.
  explicit ContentDigester(const Manifest& manifest);
  // Digests the leaves of bytes [offset, offset + bytes.size()) of a tensor. kInvalidInput unless
  // the range is inside the tensor, starts at a leaf and ends at a leaf or at the tensor's end.
  [[nodiscard]] Result<> add(std::uint32_t tensor, std::uint64_t offset,
                             std::span<const std::byte> bytes);
  // Adds the digest of one leaf that was computed elsewhere. kInvalidInput if there is no such
  // leaf. Adding a leaf again replaces the earlier digest.
  [[nodiscard]] Result<> add_leaf(std::uint32_t tensor, std::uint64_t leaf, const Digest& digest);
  // Returns the leaves of one tensor so far. A leaf that was not added has a default digest.
  [[nodiscard]] std::span<const Digest> leaves(std::uint32_t tensor) const;
  // kDigestMismatch, naming the first tensor with a leaf that was never added.
  [[nodiscard]] Result<ContentDigests> finish() const;

 private:
  const Manifest* manifest_;
  std::vector<std::uint64_t> first_leaf_;  // of each tensor, and one end entry
  std::vector<Digest> leaves_;
  std::vector<std::uint8_t> added_;  // not bits: threads write neighbouring entries
};

}  // namespace wsync
