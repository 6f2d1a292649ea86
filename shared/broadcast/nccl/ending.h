// Runs a call that may never return with a deadline. ncclCommDestroy and ncclCommAbort wait for the
// GPU and for threads of NCCL, and nothing can interrupt them.
#pragma once

#include <functional>

#include "shared/base/clock.h"

namespace wsync::collective::nccl {

// Runs `call` on a separate thread and waits for it until the deadline. Returns false if it has not
// ended by then. Its thread then continues detached, so `call` must own everything that it uses.
[[nodiscard]] bool ends_in_time(std::function<void()> call, TimePoint deadline);

}  // namespace wsync::collective::nccl
