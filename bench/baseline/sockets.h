// Common functions for the bare sockets of measurements.
#pragma once

#include <string_view>
#include <sys/types.h>

#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr int kStallSeconds = 30;  // maximum wait of a call on a bare link

// Sets the time limit of all calls on this socket to kStallSeconds.
[[nodiscard]] Result<> limit_stalls(int fd);
// Returns the error of a call on such a socket that returned `result` with `error` (an errno).
[[nodiscard]] tl::unexpected<Error> stream_error(std::string_view what, ssize_t result, int error);

}  // namespace wsync::bench
