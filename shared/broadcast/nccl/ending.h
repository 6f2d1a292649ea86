// A call that may never come back, with a deadline: ncclCommDestroy and ncclCommAbort wait for the
// GPU and for threads of NCCL, and nothing ends them.
#pragma once

#include <functional>

#include "shared/base/clock.h"

namespace wsync::collective::nccl {

// Runs `call` on a thread of its own and waits for it, but not past the deadline. False when it has
// not ended by then: its thread goes on by itself and nobody waits for it any more, so `call` owns
// all that it uses.
[[nodiscard]] bool ends_in_time(std::function<void()> call, TimePoint deadline);

}  // namespace wsync::collective::nccl
