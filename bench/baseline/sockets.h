// What the bare sockets of measurements have in common.
#pragma once

#include <string_view>
#include <sys/types.h>

#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr int kStallSeconds = 30;  // that a call on a bare link waits, at most

// Calls on this socket wait kStallSeconds at most.
[[nodiscard]] Result<> limit_stalls(int fd);
// What a call that returned `result` and `error` (an errno) on such a socket means.
[[nodiscard]] tl::unexpected<Error> stream_error(std::string_view what, ssize_t result, int error);

}  // namespace wsync::bench
