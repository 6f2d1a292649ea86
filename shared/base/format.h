// fmt::format for all folders. Only this file names the library, so that std::format can replace it
// later.
#pragma once

#include <cstdint>
#include <fmt/format.h>  // IWYU pragma: export
#include <fmt/ranges.h>  // IWYU pragma: export
#include <string>
#include <string_view>

namespace wsync {

// Returns the count with its noun: "1 replica", "3 replicas". The noun's plural must end in s.
[[nodiscard]] inline std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace wsync
