#include "inference_side/reload/shard.h"

#include <algorithm>

#include "shared/base/format.h"

namespace wsync::reload {

namespace {

// The range of each dimension. A dimension without a given range is taken whole.
Result<std::vector<control::DimRange>> complete_ranges(std::span<const std::uint64_t> shape,
                                                       std::span<const control::DimRange> ranges) {
  std::vector<control::DimRange> whole(shape.size());
  std::vector<bool> given(shape.size(), false);
  for (std::size_t d = 0; d < shape.size(); ++d)
    whole[d] = {.dim = static_cast<std::uint32_t>(d), .begin = 0, .length = shape[d]};
  for (const auto& range : ranges) {
    if (range.dim >= shape.size())
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("a range names dimension {}, the tensor has {}", range.dim, shape.size()));
    if (given[range.dim])
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("dimension {} has two ranges; give each dimension once", range.dim));
    const std::uint64_t size = shape[range.dim];
    if (range.begin > size || range.length > size - range.begin)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("dimension {}: {} elements from {} on do not fit in its size {}",
                              range.dim, range.length, range.begin, size));
    given[range.dim] = true;
    whole[range.dim] = range;
  }
  return whole;
}

}  // namespace

Result<Shard> Shard::make(std::uint64_t element_bits, std::span<const std::uint64_t> shape,
                          std::span<const control::DimRange> ranges) {
  auto whole = WSYNC_TRY(complete_ranges(shape, ranges));
  std::uint64_t full_bits =
      element_bits;  // of one index step of the current dimension, in the tensor
  std::uint64_t begin_bits = 0;
  std::uint64_t run_bits = element_bits;
  bool one_run = true;  // the current dimension's inner block is contiguous
  std::uint64_t run_count = 1;
  std::vector<Level> levels;  // innermost first; stride still in bits
  for (std::size_t d = shape.size(); d-- > 0;) {
    const auto& range = whole[d];
    const bool partial = range.length != shape[d];
    if (partial && ((range.begin * full_bits) % 8 != 0 || (range.length * full_bits) % 8 != 0))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("dimension {}: a cut of {}-bit elements at {} or {} is inside a byte",
                              d, element_bits, range.begin, range.begin + range.length));
    begin_bits += range.begin * full_bits;
    if (one_run) {
      run_bits *= range.length;
      one_run = !partial;
    } else if (full_bits % 8 != 0) {
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format(
              "dimension {}: its rows of {} bits do not end on a byte, so no inner range fits", d,
              full_bits));
    } else if (!levels.empty() && levels.back().count * levels.back().stride_bytes == full_bits) {
      levels.back().count *= range.length;
      run_count *= range.length;
    } else if (range.length != 1) {
      levels.push_back({.count = range.length, .stride_bytes = full_bits});
      run_count *= range.length;
    }
    full_bits *= shape[d];
  }
  if (run_bits % 8 != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} bits are not a whole number of bytes", run_bits));

  Shard shard;
  shard.tensor_bytes_ = full_bits / 8;
  if (run_bits == 0 || run_count == 0) return shard;
  shard.begin_ = begin_bits / 8;
  shard.run_bytes_ = run_bits / 8;
  shard.run_count_ = run_count;
  std::uint64_t inner_bytes = shard.run_bytes_;
  for (auto& level : levels) {
    level.stride_bytes /= 8;
    level.shard_bytes = inner_bytes;
    inner_bytes *= level.count;
  }
  std::ranges::reverse(levels);
  shard.levels_ = std::move(levels);
  return shard;
}

Shard::Run Shard::run_at(std::uint64_t at) const noexcept {
  Run run{.offset = begin_, .bytes = run_bytes_};
  for (const auto& level : levels_) {
    run.offset += at / level.shard_bytes * level.stride_bytes;
    at %= level.shard_bytes;
  }
  run.offset += at;
  run.bytes -= at;
  return run;
}

Shard::Rows Shard::rows_at(std::uint64_t at, std::uint64_t max) const noexcept {
  const Run run = run_at(at);
  if (run.bytes < run_bytes_ || max < 2 * run_bytes_ || levels_.empty())
    return {.offset = run.offset, .row_bytes = std::min(run.bytes, max)};
  const Level& inner = levels_.back();
  const std::uint64_t left = inner.count - at / run_bytes_ % inner.count;
  const std::uint64_t rows = std::min(left, max / run_bytes_);
  return {.offset = run.offset,
          .row_bytes = run_bytes_,
          .rows = rows,
          .stride = rows > 1 ? inner.stride_bytes : 0};
}

std::uint64_t Shard::bytes_before(std::uint64_t offset) const noexcept {
  if (offset <= begin_ || run_count_ == 0) return 0;
  std::uint64_t rest = offset - begin_;
  std::uint64_t before = 0;
  for (const auto& level : levels_) {
    const std::uint64_t steps = rest / level.stride_bytes;
    if (steps >= level.count) return before + level.count * level.shard_bytes;
    before += steps * level.shard_bytes;
    rest -= steps * level.stride_bytes;
  }
  return before + std::min(rest, run_bytes_);
}

}  // namespace wsync::reload
