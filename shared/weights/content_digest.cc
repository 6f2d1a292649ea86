#include "shared/weights/content_digest.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"

namespace wsync {

std::uint64_t leaf_count(std::uint64_t tensor_bytes) noexcept {
  return tensor_bytes / limits::kLeafBytes + (tensor_bytes % limits::kLeafBytes != 0 ? 1 : 0);
}

std::uint64_t leaf_count(const Manifest& manifest) noexcept {
  std::uint64_t leaves = 0;
  for (std::size_t i = 0; i < manifest.size(); ++i) leaves += leaf_count(manifest.byte_size(i));
  return leaves;
}

Result<ContentDigests> digests_of_leaves(const Manifest& manifest,
                                         std::span<const WordSum> leaves) {
  if (leaves.size() != leaf_count(manifest))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("received the sums of {} leaves, but the tensors have {}",
                            leaves.size(), leaf_count(manifest)));
  ContentDigester digester(manifest);
  std::size_t next = 0;
  for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor)
    for (std::uint64_t leaf = 0; leaf < leaf_count(manifest.byte_size(tensor)); ++leaf)
      WSYNC_TRY(digester.add_leaf(tensor, leaf, leaves[next++]));
  return digester.finish();
}

Digest tensor_digest(std::string_view name, std::span<const std::byte> tensor) {
  return tensor_digest(seed_of(name), tensor);
}

Digest tensor_digest(std::uint64_t seed, std::span<const std::byte> tensor) {
  return digest_of(word_sum(tensor, {.seed = seed}), tensor.size());
}

Digest root_digest(std::span<const Digest> tensors) {
  Digester digester;
  digester.update(std::uint64_t{tensors.size()});
  for (const Digest& tensor : tensors) digester.update(tensor);
  return digester.finish();
}

ContentDigester::ContentDigester(const Manifest& manifest) : manifest_(&manifest) {
  first_leaf_.reserve(manifest.size() + 1);
  std::uint64_t leaves = 0;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    first_leaf_.push_back(leaves);
    leaves += leaf_count(manifest.byte_size(i));
    seeds_.push_back(planted("tensors_share_a_seed") ? 0 : seed_of(manifest.tensor(i).name));
  }
  first_leaf_.push_back(leaves);
  leaves_.resize(leaves);
  added_.resize(leaves);
}

SumPlace ContentDigester::place(std::uint32_t tensor, std::uint64_t offset) const {
  return {.seed = seeds_[tensor], .position = offset};
}

Result<> ContentDigester::add(std::uint32_t tensor, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  const std::uint64_t size = tensor < manifest_->size() ? manifest_->byte_size(tensor) : 0;
  const bool inside = offset <= size && bytes.size() <= size - offset;
  const std::uint64_t end = offset + bytes.size();
  if (!inside || offset % limits::kLeafBytes != 0 || (end != size && end % limits::kLeafBytes != 0))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("bytes {} to {} of tensor {} ({} bytes) are not whole leaves of it",
                            offset, end, tensor, size));
  for (std::size_t at = 0; at < bytes.size(); at += limits::kLeafBytes)
    WSYNC_TRY(add_leaf(
        tensor, (offset + at) / limits::kLeafBytes,
        word_sum(bytes.subspan(at, std::min<std::size_t>(limits::kLeafBytes, bytes.size() - at)),
                 place(tensor, offset + at))));
  return {};
}

Result<> ContentDigester::add_leaf(std::uint32_t tensor, std::uint64_t leaf, const WordSum& sum) {
  if (tensor >= manifest_->size() || leaf >= first_leaf_[tensor + 1] - first_leaf_[tensor])
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {} has no leaf {}", tensor, leaf));
  leaves_[first_leaf_[tensor] + leaf] = sum;
  added_[first_leaf_[tensor] + leaf] = 1;
  return {};
}

Result<ContentDigests> ContentDigester::finish() const {
  ContentDigests digests{
      .leaves = leaves_, .first_leaf = first_leaf_, .sums = {}, .tensors = {}, .root = {}};
  digests.tensors.reserve(manifest_->size());
  for (std::uint32_t tensor = 0; tensor < manifest_->size(); ++tensor) {
    WordSum sum;
    for (std::uint64_t i = first_leaf_[tensor]; i < first_leaf_[tensor + 1]; ++i) {
      sum += leaves_[i];
      if (added_[i] == 0)
        return fail(ErrorCode::kDigestMismatch,
                    fmt::format("tensor '{}': leaf {} of {} was never digested",
                                manifest_->tensor(tensor).name, i - first_leaf_[tensor],
                                first_leaf_[tensor + 1] - first_leaf_[tensor]));
    }
    digests.sums.push_back(sum);
    digests.tensors.push_back(digest_of(sum, manifest_->byte_size(tensor)));
  }
  digests.root = root_digest(digests.tensors);
  return digests;
}

}  // namespace wsync
