// Sizes and durations as people write them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::config {

// "64MiB" -> bytes. A whole number and one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB; a bare number
// is refused except 0, so that nobody has to guess the unit. kInvalidInput names the forms.
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text);
// "500ms" -> 500 ms. A whole number and one of ms, s, m, h; a bare number is refused except 0.
[[nodiscard]] Result<std::chrono::milliseconds> parse_duration(std::string_view text);
// The shortest exact form: 67108864 -> "64MiB".
[[nodiscard]] std::string format_size(std::uint64_t bytes);
// The shortest exact form: 120000 ms -> "2m".
[[nodiscard]] std::string format_duration(std::chrono::milliseconds duration);

// Of `candidates`, the one fewest edits (insert, delete, replace, swap of neighbours) away from
// `text`; empty when every one is further than a third of the longer length. Cost: product of the
// lengths.
template <class Range>
[[nodiscard]] std::string nearest_name(std::string_view text, const Range& candidates);
// The number of those edits.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

template <class Range>
std::string nearest_name(std::string_view text, const Range& candidates) {
  std::string best;
  std::size_t best_distance = SIZE_MAX;
  for (const auto& candidate : candidates) {
    const std::string_view name(candidate);
    const std::size_t limit = (name.size() > text.size() ? name.size() : text.size()) / 3 + 1;
    if (name.size() > text.size() + limit || text.size() > name.size() + limit) continue;
    const std::size_t distance = edit_distance(text, name);
    if (distance <= limit && distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace wsync::config
