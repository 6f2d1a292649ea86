// A histogram of non-negative integers with logarithmic buckets: every quantile is exact within
// 1/32 of its value.
#pragma once

#include <array>
#include <cstdint>

namespace wsync {

// Fixed memory (about 15 KiB), no allocation, not thread-safe; merge histograms of several threads.
class Histogram {
 public:
  void record(std::uint64_t value) noexcept;
  void merge(const Histogram& other) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t min() const noexcept { return count_ == 0 ? 0 : min_; }
  [[nodiscard]] std::uint64_t max() const noexcept { return max_; }
  [[nodiscard]] double mean() const noexcept;
  // The value below or at which a share `q` (0 to 1) of the recorded values lies; 0 when empty.
  [[nodiscard]] std::uint64_t quantile(double q) const noexcept;

 private:
  static constexpr unsigned kSubBits = 5;  // 32 buckets for each power of two
  static constexpr std::size_t kBuckets = (64 - kSubBits + 1) << kSubBits;
  static std::size_t bucket_of(std::uint64_t value) noexcept;
  static std::uint64_t upper_bound(std::size_t bucket) noexcept;

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  std::uint64_t min_ = ~0ULL;
  std::uint64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace wsync
