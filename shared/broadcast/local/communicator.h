// The local backend: ranks of one process, on any devices. Each destination's stream copies from
// the root's bytes, so N destinations are N copies that truly run beside each other. GPUs must be
// the same one, or peers.
#pragma once

#include "shared/broadcast/communicator.h"

namespace wsync::collective::local {

[[nodiscard]] Result<std::unique_ptr<Group>> make_local_group(std::uint32_t size);

}  // namespace wsync::collective::local
