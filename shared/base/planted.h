// Planted faults: deliberate bugs that prove that the tests detect them. Only a build configured
// with -DWSYNC_PLANTED=ON contains them. There, the environment variable WSYNC_PLANT names the
// active fault. In every other build planted() is the constant false, and the compiler removes the
// branch.
#pragma once

#include <string_view>
#ifdef WSYNC_PLANTED
#include <cstdlib>
#endif

namespace wsync {

// Returns true if the fault `name` is active. Reads the environment at each call.
#ifdef WSYNC_PLANTED
[[nodiscard]] inline bool planted(std::string_view name) noexcept {
  const char* chosen = std::getenv("WSYNC_PLANT");
  return chosen != nullptr && name == chosen;
}
#else
[[nodiscard]] constexpr bool planted(std::string_view /*name*/) noexcept { return false; }
#endif

}  // namespace wsync
