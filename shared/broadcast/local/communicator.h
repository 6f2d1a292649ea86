// The local backend: ranks of one process, on any devices. The stream of each destination copies
// from the root's memory, so N destinations make N concurrent copies. GPUs must be identical or
// peers.
#pragma once

#include "shared/broadcast/communicator.h"

namespace wsync::collective::local {

[[nodiscard]] Result<std::unique_ptr<Group>> make_local_group(std::uint32_t size);

}  // namespace wsync::collective::local
