#include "shared/weights/leaf_table.h"

#include <algorithm>

#include "shared/base/weight_limits.h"

namespace wsync {

LeafTable::LeafTable(const Manifest& manifest, const BucketPlan& plan) {
  std::vector<std::uint64_t> seeds;
  seeds.reserve(manifest.size());
  for (const TensorInfo& tensor : manifest.tensors()) seeds.push_back(seed_of(tensor.name));
  first_.reserve(plan.bucket_count() + 1);
  for (std::size_t bucket = 0; bucket < plan.bucket_count(); ++bucket) {
    first_.push_back(leaves_.size());
    for (const Piece& piece : plan.bucket(bucket))
      for (std::uint64_t at = 0; at < piece.bytes; at += limits::kLeafBytes)
        leaves_.push_back(
            {.arena_offset = plan.arena_offset(piece) + at,
             .bytes = std::min(limits::kLeafBytes, piece.bytes - at),
             .place = {.seed = seeds[piece.tensor], .position = piece.tensor_offset + at},
             .tensor = piece.tensor});
  }
  first_.push_back(leaves_.size());
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
