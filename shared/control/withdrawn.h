// The list of withdrawn versions that Hello, Decide and StatusReply carry.
#pragma once

#include <span>
#include <vector>

#include "shared/weights/version.h"

namespace wsync::control {

// Shortens the list to limits::kWithdrawnCount, so that it can be stored and sent. Versions in use
// are kept first, then the newest. A removed version is older than every kept version that is not
// in use, and was withdrawn thousands of rollbacks ago.
void bound_withdrawn(std::vector<Version>& withdrawn, std::span<const Version> in_use);

}  // namespace wsync::control
