#include "shared/config/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <vector>

#include "shared/base/format.h"

namespace wsync::config {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};
// Each table lists first, from largest to smallest, the units that format_* may print.
constexpr std::array<Unit, 9> kSizeUnits{{{"TiB", 1ULL << 40U},
                                          {"GiB", 1ULL << 30U},
                                          {"MiB", 1ULL << 20U},
                                          {"KiB", 1ULL << 10U},
                                          {"TB", 1'000'000'000'000},
                                          {"GB", 1'000'000'000},
                                          {"MB", 1'000'000},
                                          {"KB", 1'000},
                                          {"B", 1}}};
constexpr std::array<Unit, 4> kDurationUnits{
    {{"h", 3'600'000}, {"m", 60'000}, {"s", 1'000}, {"ms", 1}}};

template <std::size_t N>
Result<std::uint64_t> parse(std::string_view text, const std::array<Unit, N>& units,
                            std::string_view form) {
  const auto refuse = [&] {
    return fail(ErrorCode::kInvalidInput, fmt::format("expected {}, found '{}'", form, text));
  };
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return refuse();
  const std::string_view name = text.substr(static_cast<std::size_t>(end - text.data()));
  if (name.empty() && number == 0) return 0;
  const auto unit =
      std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
  if (unit == units.end()) return refuse();
  // Callers hold durations as signed milliseconds, so both kinds of value are limited to 63 bits.
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (number > kMax / unit->factor) return refuse();
  return number * unit->factor;
}

template <std::size_t N>
std::string print(std::uint64_t value, const std::array<Unit, N>& units, std::string_view base) {
  for (const Unit& unit : units) {
    const bool binary_or_base = (unit.factor & (unit.factor - 1)) == 0 || base == "ms";
    if (value != 0 && binary_or_base && value % unit.factor == 0)
      return fmt::format("{}{}", value / unit.factor, unit.name);
  }
  return fmt::format("{}{}", value, base);
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  return parse(text, kSizeUnits, "a size such as 64MiB (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)");
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const auto value =
      WSYNC_TRY(parse(text, kDurationUnits, "a duration such as 500ms (ms, s, m, h)"));
  return std::chrono::milliseconds(static_cast<std::int64_t>(value));
}

std::string format_size(std::uint64_t bytes) { return print(bytes, kSizeUnits, "B"); }

std::string format_duration(std::chrono::milliseconds duration) {
  return print(static_cast<std::uint64_t>(duration.count()), kDurationUnits, "ms");
}

std::string known_names(std::string_view text, const std::set<std::string>& known) {
  constexpr std::size_t kNamed = 8;
  if (known.empty()) return "; it knows none";
  const std::string nearest = nearest_name(text, known);
  std::vector<std::string> named(known.begin(), known.end());
  const std::size_t more = named.size() - std::min(named.size(), kNamed);
  named.resize(named.size() - more);
  return fmt::format("; {}it knows {}{}",
                     nearest.empty() ? "" : fmt::format("did you mean '{}'? ", nearest),
                     fmt::join(named, ", "), more == 0 ? "" : fmt::format(" and {} more", more));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Damerau-Levenshtein distance (optimal string alignment). Three rows of the table are enough;
  // the row before the previous one is needed for swaps.
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace wsync::config
