// A descriptor that stands for another process (pidfd). It becomes readable when the process has
// ended, even if a child of it still has the connections that the process had. A process id that is
// used again does no harm afterwards.
//
// Thread: any.
#pragma once

#include <sys/types.h>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync {

// `pid`: as SO_PEERCRED reports it. Errors: kNotFound for 0, which stands for a process of another
// PID namespace; kPeerLost if the process has ended; kIo if the system does not support it.
[[nodiscard]] Result<UniqueFd> open_process(pid_t pid);
// Whether the process of this descriptor has ended.
[[nodiscard]] bool process_has_ended(const UniqueFd& process) noexcept;

}  // namespace wsync
