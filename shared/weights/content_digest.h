// The content digest: it defines what "these are the bytes of version V" means. It does not depend
// on buckets and plans, so any two parties can compare it.
//
//   sum     of a tensor: WordSum of its bytes with the seed of its name (shared/base/word_sum.h)
//   tensor  XXH3-128 of three little-endian u64: the product and the sum of its WordSum, and its
//           number of bytes
//   root    XXH3-128 of the number of tensors as a little-endian u64, then the tensors' canonical
//           16 bytes in manifest order
//
// Sums are taken leaf by leaf, so that several threads can share a tensor and a damaged part can be
// named: a leaf is limits::kLeafBytes of a tensor (the last one may be shorter).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/word_sum.h"
#include "shared/weights/manifest.h"

namespace wsync {

// Number of leaves of a tensor of that many bytes; 0 for an empty one.
[[nodiscard]] std::uint64_t leaf_count(std::uint64_t tensor_bytes) noexcept;
// The same of all tensors together.
[[nodiscard]] std::uint64_t leaf_count(const Manifest& manifest) noexcept;
// Returns the tensor digest of a tensor's bytes. digest_of(WordSum, bytes) does so of its sum.
[[nodiscard]] Digest tensor_digest(std::string_view name, std::span<const std::byte> tensor);
// The same for a tensor with this seed_of() its name.
[[nodiscard]] Digest tensor_digest(std::uint64_t seed, std::span<const std::byte> tensor);
// Returns the root digest of the tensor digests, which are in manifest order.
[[nodiscard]] Digest root_digest(std::span<const Digest> tensors);

struct ContentDigests {
  std::vector<WordSum> leaves;            // of all tensors, in manifest order
  std::vector<std::uint64_t> first_leaf;  // of each tensor in `leaves`, and one end entry
  std::vector<WordSum> sums;              // of the tensors, in manifest order
  std::vector<Digest> tensors;            // likewise
  Digest root;
  friend bool operator==(const ContentDigests&, const ContentDigests&) = default;
  [[nodiscard]] std::span<const WordSum> leaves_of(std::uint32_t tensor) const {
    return std::span(leaves).subspan(first_leaf[tensor],
                                     first_leaf[tensor + 1] - first_leaf[tensor]);
  }
};

// Returns the digests of the content whose leaves have these sums, in manifest order. kInvalidInput
// unless there is a sum for each leaf.
[[nodiscard]] Result<ContentDigests> digests_of_leaves(const Manifest& manifest,
                                                       std::span<const WordSum> leaves);

// Collects sums of leaves in any order. Thread: several threads may add at the same time if no two
// add the same leaf. Call finish() after all of them have ended.
class ContentDigester {
 public:
  // The manifest is borrowed and must outlive this object.
  explicit ContentDigester(const Manifest& manifest);
  // Where byte `offset` of a tensor lies in its sum.
  [[nodiscard]] SumPlace place(std::uint32_t tensor, std::uint64_t offset) const;
  // Sums the leaves of bytes [offset, offset + bytes.size()) of a tensor. kInvalidInput unless
  // the range is inside the tensor, starts at a leaf and ends at a leaf or at the tensor's end.
  [[nodiscard]] Result<> add(std::uint32_t tensor, std::uint64_t offset,
                             std::span<const std::byte> bytes);
  // Adds the sum of one leaf that was computed elsewhere, at its place(). kInvalidInput if there is
  // no such leaf. Adding a leaf again replaces the earlier sum.
  [[nodiscard]] Result<> add_leaf(std::uint32_t tensor, std::uint64_t leaf, const WordSum& sum);
  // kDigestMismatch, naming the first tensor with a leaf that was never added.
  [[nodiscard]] Result<ContentDigests> finish() const;

 private:
  const Manifest* manifest_;
  std::vector<std::uint64_t> first_leaf_;  // of each tensor, and one end entry
  std::vector<std::uint64_t> seeds_;       // of the tensors
  std::vector<WordSum> leaves_;
  std::vector<std::uint8_t> added_;  // not bits: threads write neighbouring entries
};

}  // namespace wsync
