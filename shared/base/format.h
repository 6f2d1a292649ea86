// fmt::format for every folder, so that the library is named in one place until std::format can
// take over.
#pragma once

#include <cstdint>
#include <fmt/format.h>  // IWYU pragma: export
#include <fmt/ranges.h>  // IWYU pragma: export
#include <string>
#include <string_view>

namespace wsync {

// "1 replica", "3 replicas": a noun whose plural ends in s.
[[nodiscard]] inline std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace wsync
