#include "shared/base/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace wsync {

std::size_t Histogram::bucket_of(std::uint64_t value) noexcept {
  const auto width = static_cast<unsigned>(std::bit_width(value));
  if (width <= kSubBits) return static_cast<std::size_t>(value);
  const unsigned shift = width - kSubBits - 1;
  const std::uint64_t sub = (value >> shift) & ((1ULL << kSubBits) - 1);
  return (static_cast<std::size_t>(shift + 1) << kSubBits) + static_cast<std::size_t>(sub);
}

std::uint64_t Histogram::upper_bound(std::size_t bucket) noexcept {
  if (bucket < (1ULL << kSubBits)) return bucket;
  const std::size_t shift = (bucket >> kSubBits) - 1;
  const std::uint64_t sub = bucket & ((1ULL << kSubBits) - 1);
  return (((1ULL << kSubBits) + sub) << shift) + ((1ULL << shift) - 1);
}

void Histogram::record(std::uint64_t value) noexcept {
  ++buckets_[bucket_of(value)];
  ++count_;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += static_cast<double>(value);
}

void Histogram::merge(const Histogram& other) noexcept {
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

double Histogram::mean() const noexcept {
  return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_);
}

std::uint64_t Histogram::quantile(double q) const noexcept {
  if (count_ == 0) return 0;
  const double wanted = std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_));
  const auto rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::clamp(upper_bound(i), min_, max_);
  }
  return max_;
}

}  // namespace wsync
