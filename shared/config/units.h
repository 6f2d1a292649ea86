// Sizes and durations in the form that people write.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::config {

// "64MiB" -> bytes. Accepts a whole number with the unit B, KiB, MiB, GiB, TiB, KB, MB, GB or TB. A
// number without a unit is refused, except 0, so that the unit is always explicit. The
// kInvalidInput error lists the accepted forms.
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text);
// "500ms" -> 500 ms. Accepts a whole number with the unit ms, s, m or h. A number without a unit is
// refused, except 0.
[[nodiscard]] Result<std::chrono::milliseconds> parse_duration(std::string_view text);
// Returns the shortest exact form: 67108864 -> "64MiB".
[[nodiscard]] std::string format_size(std::uint64_t bytes);
// Returns the shortest exact form: 120000 ms -> "2m".
[[nodiscard]] std::string format_duration(std::chrono::milliseconds duration);

// Returns the candidate with the smallest edit distance from `text`. Returns an empty value if each
// distance exceeds a third of the longer length. Cost: the product of the lengths.
template <class Range>
[[nodiscard]] std::string nearest_name(std::string_view text, const Range& candidates);
// The end of a refusal of a name that is none of `known`: "; did you mean 'a'? it knows a, b".
// Names at most eight of them.
[[nodiscard]] std::string known_names(std::string_view text, const std::set<std::string>& known);
// Returns the number of edits: inserts, deletes, replacements and swaps of neighbours.
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
