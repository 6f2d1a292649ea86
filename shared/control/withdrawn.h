// The list of withdrawn versions that Hello, Decide and StatusReply carry.
#pragma once

#include <span>
#include <vector>

#include "shared/weights/version.h"

namespace wsync::control {

// Shortens the list to limits::kWithdrawnCount, so that it can be stored and sent: versions in use
// stay first, then the newest. What goes is older than every one that stays, and was withdrawn
// thousands of rollbacks ago.
void bound_withdrawn(std::vector<Version>& withdrawn, std::span<const Version> in_use);

}  // namespace wsync::control
