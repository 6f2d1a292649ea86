// Planted faults: deliberate bugs that prove the tests can see. Only a build configured with
// -DWSYNC_PLANTED=ON contains them; there, the environment variable WSYNC_PLANT names the one that
// is active. In every other build planted() is the constant false and the branch is gone.
#pragma once

#include <string_view>
#ifdef WSYNC_PLANTED
#include <cstdlib>
#endif

namespace wsync {

// True when the fault `name` is to happen here. Reads the environment at each call.
#ifdef WSYNC_PLANTED
[[nodiscard]] inline bool planted(std::string_view name) noexcept {
  const char* chosen = std::getenv("WSYNC_PLANT");
  return chosen != nullptr && name == chosen;
}
#else
[[nodiscard]] constexpr bool planted(std::string_view /*name*/) noexcept { return false; }
#endif

}  // namespace wsync
