// FleetId: 128 random bits that name one fleet for its whole lifetime. A coordinator and its
// sidecars store it on disk and refuse a peer that names another fleet. Zero names no fleet.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::control {

struct FleetId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const FleetId&, const FleetId&) = default;
  friend auto operator<=>(const FleetId&, const FleetId&) = default;
  [[nodiscard]] bool none() const noexcept { return high == 0 && low == 0; }
  // Returns 32 lower-case hex digits, the high half first.
  [[nodiscard]] std::string to_string() const;
  // Returns kInvalidInput unless the text is 32 hex digits that are not all zero.
  [[nodiscard]] static Result<FleetId> parse(std::string_view text);
};

}  // namespace wsync::control
