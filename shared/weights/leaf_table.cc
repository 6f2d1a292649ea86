#include "shared/weights/leaf_table.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/content_digest.h"

namespace wsync {

LeafTable::LeafTable(const Manifest& manifest, const BucketPlan& plan) {
  std::vector<std::uint64_t> seeds;
  seeds.reserve(manifest.size());
  for (const TensorInfo& tensor : manifest.tensors()) seeds.push_back(seed_of(tensor.name));
  first_.reserve(plan.bucket_count() + 1);
  for (std::size_t bucket = 0; bucket < plan.bucket_count(); ++bucket) {
    first_.push_back(leaves_.size());
    for (const Piece& piece : plan.bucket(bucket))
      for (std::uint64_t at = 0; at < piece.bytes;) {
        // A piece of a part may begin inside a leaf.
        const std::uint64_t position = piece.tensor_offset + at;
        const std::uint64_t bytes =
            std::min(limits::kLeafBytes - position % limits::kLeafBytes, piece.bytes - at);
        leaves_.push_back({.arena_offset = plan.arena_offset(piece) + at,
                           .bytes = bytes,
                           .place = {.seed = seeds[piece.tensor], .position = position},
                           .tensor = piece.tensor});
        at += bytes;
      }
  }
  first_.push_back(leaves_.size());
}

std::vector<WordSum> whole_leaves(const Manifest& manifest, const LeafTable& table,
                                  std::span<const WordSum> sums) {
  WSYNC_CHECK(sums.size() == table.all().size(), "there is a sum for each leaf of the table");
  std::vector<std::uint64_t> first;  // leaf of each tensor
  first.reserve(manifest.size());
  std::uint64_t leaves = 0;
  for (std::size_t tensor = 0; tensor < manifest.size(); ++tensor) {
    first.push_back(leaves);
    leaves += leaf_count(manifest.byte_size(tensor));
  }
  std::vector<WordSum> whole(leaves);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const LeafPlace& leaf = table.all()[i];
    WordSum& sum = whole[first[leaf.tensor] + leaf.place.position / limits::kLeafBytes];
    if (planted("sums_of_cut_leaves_replace_each_other")) sum = {};
    sum += sums[i];
  }
  return whole;
}

Digest bucket_digest(std::span<const WordSum> leaves) {
  Digester digester;
  for (const WordSum& leaf : leaves) {
    digester.update(leaf.product);
    digester.update(leaf.sum);
  }
  return digester.finish();
}

}  // namespace wsync
