#include "inference_side/reload/part_relation.h"

#include "inference_side/reload/shard.h"

namespace wsync::reload {
namespace {

// The range of one dimension that a part holds.
Shard::Interval extent_of(const control::EngineTensor& part, std::uint32_t dim) {
  for (const control::DimRange& range : part.ranges)
    if (range.dim == dim) return {.begin = range.begin, .end = range.begin + range.length};
  return {.begin = 0, .end = part.shape[dim]};
}

}  // namespace

PartRelation relation_of(const control::EngineTensor& a, const control::EngineTensor& b) {
  bool equal = true;
  for (std::uint32_t dim = 0; dim < a.shape.size(); ++dim) {
    const Shard::Interval one = extent_of(a, dim);
    const Shard::Interval other = extent_of(b, dim);
    if (one.end <= other.begin || other.end <= one.begin) return PartRelation::kApart;
    equal &= one == other;
  }
  return equal ? PartRelation::kEqual : PartRelation::kOverlapping;
}

}  // namespace wsync::reload
