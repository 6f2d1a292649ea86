#include "inference_side/reload/needed_bytes.h"

#include <algorithm>

#include "shared/base/planted.h"

namespace wsync::reload {
namespace {

// Appends the rows, or makes the last row longer.
void add(std::vector<NeededRows>& rows, std::size_t first_of_bucket, const NeededRows& next) {
  if (rows.size() > first_of_bucket && rows.back().rows == 1 && next.rows == 1) {
    NeededRows& last = rows.back();
    const std::uint64_t end = last.from + last.row_bytes;
    if (next.from < end + NeededBytes::kCallBytes) {
      last.row_bytes = std::max(end, next.from + next.row_bytes) - last.from;
      return;
    }
  }
  rows.push_back(next);
}

}  // namespace

NeededBytes NeededBytes::of(const LoadPlan& plan) {
  NeededBytes needed;
  for (std::uint64_t bucket = 0; bucket < plan.bucket_count(); ++bucket) {
    needed.first_.push_back(needed.rows_.size());
    std::vector<NeededRows> of_bucket;
    const auto groups = plan.groups().subspan(
        plan.first_group(bucket), plan.first_group(bucket + 1) - plan.first_group(bucket));
    for (const CopyGroup& group : groups)
      for (const GroupRows& rows : plan.rows(group)) {
        needed.bytes_ += rows.bytes();
        // Rows within little space are one copy.
        const NeededRows next{.from = rows.from,
                              .row_bytes = rows.row_bytes,
                              .rows = rows.rows,
                              .stride = rows.rows == 1 ? 0 : rows.stride};
        if (next.span_bytes() <= kCallBytes)
          of_bucket.push_back({.from = next.from, .row_bytes = next.span_bytes()});
        else
          of_bucket.push_back(next);
      }
    std::ranges::sort(of_bucket, {}, &NeededRows::from);
    for (const NeededRows& rows : of_bucket) add(needed.rows_, needed.first_.back(), rows);
  }
  if (planted("needed_row_skipped") && !needed.rows_.empty() && needed.rows_.back().rows > 1)
    --needed.rows_.back().rows;
  needed.first_.push_back(needed.rows_.size());
  return needed;
}

std::span<const NeededRows> NeededBytes::of_bucket(std::uint64_t bucket) const {
  return std::span(rows_).subspan(first_[bucket], first_[bucket + 1] - first_[bucket]);
}

}  // namespace wsync::reload
