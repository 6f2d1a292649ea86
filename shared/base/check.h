// WSYNC_CHECK tests an invariant of wsync itself. If the invariant does not hold, the process
// aborts and prints the sentence and the source line.
#pragma once

#include <source_location>
#include <string_view>

namespace wsync {

[[noreturn]] void check_failed(
    std::string_view condition, std::string_view message,
    std::source_location where = std::source_location::current()) noexcept;

}  // namespace wsync

// Active in every build type. `message` is only evaluated when the condition is false.
#define WSYNC_CHECK(condition, message)             \
  do {                                              \
    if (!(condition)) [[unlikely]]                  \
      ::wsync::check_failed(#condition, (message)); \
  } while (false)
