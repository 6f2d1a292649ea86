// The floor of the peers' job: a process that only copies the model once, with the best streaming
// copy, from a shared mapping into its own memory.
#pragma once

#include "shared/base/error.h"

namespace wsync::bench {

// Runs a process that `wsync bench peers` starts with the environment of scripts/member.py. It maps
// the models of the job and touches all memory. It answers {"go": model, "kind": k} with the times
// of its copy and the digest of its memory, which is computed after the copy. `kind` is an index of
// available_copy_kinds(). It uses an equal share of the cores for its threads. It runs until the
// benchmark closes the connection.
[[nodiscard]] Result<> run_copier();

}  // namespace wsync::bench
