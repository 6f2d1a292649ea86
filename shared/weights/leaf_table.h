// LeafTable: where the leaves of a version lie in its arena, and in which bucket. Leaves are those
// of the content digest (content_digest.h), in manifest order, which is also the order of their
// bytes. Of a plan with parts, a leaf is cut between parts: each piece of it is a leaf of the
// table.
//
// Immutable once created; may be read from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/word_sum.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/manifest.h"

namespace wsync {

struct LeafPlace {
  std::uint64_t arena_offset = 0;
  std::uint64_t bytes = 0;
  SumPlace place;            // in the sum of its tensor
  std::uint32_t tensor = 0;  // index in the manifest
};

class LeafTable {
 public:
  LeafTable() = default;  // no buckets
  // The plan is one of the manifest.
  LeafTable(const Manifest& manifest, const BucketPlan& plan);
  // Of leaves that lie otherwise, in the order of their bytes. `first`: index of the first leaf of
  // each bucket, and their number at the end.
  LeafTable(std::vector<LeafPlace> leaves, std::vector<std::size_t> first)
      : leaves_(std::move(leaves)), first_(std::move(first)) {}

  [[nodiscard]] std::span<const LeafPlace> all() const noexcept { return leaves_; }
  // The leaves of one bucket. No leaf lies in two buckets.
  [[nodiscard]] std::span<const LeafPlace> bucket(std::size_t index) const {
    return all().subspan(first_[index], first_[index + 1] - first_[index]);
  }
  // Index of the first leaf of a bucket in all().
  [[nodiscard]] std::size_t first(std::size_t bucket) const { return first_[bucket]; }
  [[nodiscard]] std::size_t bucket_count() const noexcept {
    return first_.empty() ? 0 : first_.size() - 1;
  }

 private:
  std::vector<LeafPlace> leaves_;
  std::vector<std::size_t> first_;  // of each bucket, and one end entry
};

// The sums of whole leaves in manifest order, from those of a table whose leaves may be cut between
// parts. `table`: of a plan of this manifest.
[[nodiscard]] std::vector<WordSum> whole_leaves(const Manifest& manifest, const LeafTable& table,
                                                std::span<const WordSum> sums);

// XXH3-128 of the sums of the leaves of a bucket: two little-endian u64 each, product and sum. By
// it both ends of a transfer compare a bucket.
[[nodiscard]] Digest bucket_digest(std::span<const WordSum> leaves);

}  // namespace wsync
