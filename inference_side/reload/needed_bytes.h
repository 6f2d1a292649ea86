// NeededBytes: what a rank reads of each bucket of a version. A device copies that alone when it
// takes its bytes by its own link (pipeline_set.h).
//
// Thread: a NeededBytes is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference_side/reload/load_plan.h"

namespace wsync::reload {

// Rows of equal length in a bucket.
struct NeededRows {
  std::uint64_t from = 0;  // first byte, in the bucket
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t stride = 0;  // from row to row; 0 for a single row
  [[nodiscard]] std::uint64_t bytes() const noexcept { return row_bytes * rows; }
  // From the first byte of the first row to the last byte of the last one.
  [[nodiscard]] std::uint64_t span_bytes() const noexcept {
    return (rows - 1) * stride + row_bytes;
  }
  friend bool operator==(const NeededRows&, const NeededRows&) = default;
};

class NeededBytes {
 public:
  NeededBytes() = default;
  // Rows within kCallBytes, and single rows with less than that between them, become one, because a
  // copy of its own would take longer than what lies between.
  [[nodiscard]] static NeededBytes of(const LoadPlan& plan);
  // Far less than what a link moves while a call for a copy is made: on an H200, 3 us at 55 GB/s
  // (the probe of bench/gpu.sh: rows of 16 KiB, a call for each).
  static constexpr std::uint64_t kCallBytes = std::uint64_t{16} * 1024;

  [[nodiscard]] std::uint64_t bucket_count() const noexcept {
    return first_.empty() ? 0 : first_.size() - 1;
  }
  // In the order of their first bytes.
  [[nodiscard]] std::span<const NeededRows> of_bucket(std::uint64_t bucket) const;
  // Of all buckets, without what lies between rows that became one.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::vector<NeededRows> rows_;
  std::vector<std::size_t> first_;  // bucket_count() + 1 entries
  std::uint64_t bytes_ = 0;
};

}  // namespace wsync::reload
