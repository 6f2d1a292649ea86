// Name and meaning of a metric. Names follow the rules of Prometheus: snake_case, base units as
// suffix, and _total as suffix of counters.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace wsync::metrics {

enum class Kind : std::uint8_t {
  kCounter,    // only increases
  kGauge,      // current value
  kHistogram,  // counts per bucket; bucket limits are kDurationBuckets
};

struct Definition {
  std::string_view name;
  Kind kind = Kind::kGauge;
  std::string_view help;                        // one sentence without a period
  std::array<std::string_view, 2> labels = {};  // label names; empty: none

  [[nodiscard]] constexpr std::size_t label_count() const noexcept {
    return labels[0].empty() ? 0 : labels[1].empty() ? 1 : 2;
  }
};

// Upper limits in seconds, from 100 us to 100 s, with three per power of ten.
inline constexpr std::array<double, 19> kDurationBuckets = {
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1,
    0.25, 0.5,    1,    2.5,  5,      10,   25,   50,     100};

}  // namespace wsync::metrics
