// The host backend: ranks of one process. Each destination's stream worker copies from the root's
// bytes, so N destinations are N copies that truly run beside each other.
#pragma once

#include "shared/collective/communicator.h"

namespace wsync::collective::host {

[[nodiscard]] Result<std::unique_ptr<Group>> make_host_group(std::uint32_t size);

}  // namespace wsync::collective::host
