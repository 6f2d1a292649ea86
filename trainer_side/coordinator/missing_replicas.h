// Why replicas of sidecars cannot take a version: the sentence that a publish says which waits for
// them, or has ended without them.
//
// Pure; any thread.
#pragma once

#include <span>
#include <string>

#include "trainer_side/coordinator/roster.h"

namespace wsync::coordinator {

// Each cause for which replicas of these members are missing, in a clause of its own: a sidecar
// without any engine, and a replica that lacks ranks, with what its sidecar says of them (they were
// refused, they are starting, they are not attached). Only the first eight are named, and the rest
// are counted. Empty if nothing is missing.
[[nodiscard]] std::string missing_replicas(std::span<const Member* const> members);

}  // namespace wsync::coordinator
