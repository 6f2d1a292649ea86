#include "shared/weights/patch/tensor_part.h"

#include "shared/base/format.h"

namespace wsync::patch {
namespace {

struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
};

// The range of each dimension.
Result<std::vector<Extent>> extents_of(const TensorInfo& tensor,
                                       std::span<const PartRange> ranges) {
  std::vector<Extent> extents;
  for (const std::uint64_t dim : tensor.shape) extents.push_back({.begin = 0, .length = dim});
  std::vector<bool> has_range(extents.size());
  for (const PartRange& range : ranges) {
    if (range.dim >= extents.size() || has_range[range.dim] ||
        range.begin > tensor.shape[range.dim] ||
        range.length > tensor.shape[range.dim] - range.begin)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("{}: the range {} to {} of dimension {} is outside of the shape, or "
                      "the second one of its dimension",
                      describe(tensor), range.begin, range.begin + range.length, range.dim));
    extents[range.dim] = {.begin = range.begin, .length = range.length};
    has_range[range.dim] = true;
  }
  return extents;
}

}  // namespace

Result<TensorPart> TensorPart::create(const TensorInfo& tensor, std::span<const PartRange> ranges) {
  TensorPart part;
  part.tensor_bytes_ = WSYNC_TRY(tensor.byte_size());
  const auto extents = WSYNC_TRY(extents_of(tensor, ranges));
  const auto is_whole = [&](std::size_t dim) { return extents[dim].length == tensor.shape[dim]; };
  std::uint64_t index_bits = dtype_bits(tensor.dtype);  // of one index of the dimension
  std::size_t dim = extents.size();
  while (dim > 0 && is_whole(dim - 1)) index_bits *= tensor.shape[--dim];
  std::uint64_t run_bits = index_bits;
  std::uint64_t begin_bits = 0;
  if (dim > 0) {
    --dim;
    run_bits = index_bits * extents[dim].length;
    begin_bits = index_bits * extents[dim].begin;
    index_bits *= tensor.shape[dim];
  }
  if (run_bits % 8 != 0 || begin_bits % 8 != 0 || (dim > 0 && index_bits % 8 != 0))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a boundary of the part is not at a whole byte", describe(tensor)));
  part.run_begin_ = begin_bits / 8;
  part.run_bytes_ = run_bits / 8;
  part.runs_ = 1;
  std::uint64_t index_bytes = index_bits / 8;
  for (; dim > 0; --dim) {
    part.levels_.insert(part.levels_.begin(), {.count = extents[dim - 1].length,
                                               .stride_bytes = index_bytes,
                                               .begin_bytes = index_bytes * extents[dim - 1].begin,
                                               .runs = part.runs_});
    part.runs_ *= extents[dim - 1].length;
    index_bytes *= tensor.shape[dim - 1];
  }
  return part;
}

std::optional<TensorPart::Run> TensorPart::run_from(std::uint64_t at) const noexcept {
  if (bytes() == 0) return std::nullopt;
  // The number of the run that `at` lies in, or of the next one.
  std::uint64_t number = 0;
  bool is_before = false;  // `at` lies before what remains: the next run is its first one
  for (const Level& level : levels_) {
    if (at < level.begin_bytes) {
      is_before = true;
      break;
    }
    const std::uint64_t index = (at - level.begin_bytes) / level.stride_bytes;
    if (index >= level.count) {
      number += level.count * level.runs;
      is_before = true;
      break;
    }
    number += index * level.runs;
    at = (at - level.begin_bytes) % level.stride_bytes;
  }
  if (!is_before && at >= run_begin_ + run_bytes_) ++number;
  if (number >= runs_) return std::nullopt;
  Run run{.begin = run_begin_, .end = 0, .offset = number * run_bytes_};
  std::uint64_t rest = number;
  for (const Level& level : levels_) {
    run.begin += level.begin_bytes + rest / level.runs * level.stride_bytes;
    rest %= level.runs;
  }
  run.end = run.begin + run_bytes_;
  return run;
}

}  // namespace wsync::patch
