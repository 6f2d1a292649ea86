// The floor of the job that peers do: a process that does nothing but copy the model once, by the
// best streaming copy, from a mapping that everybody shares into memory of its own.
#pragma once

#include "shared/base/error.h"

namespace wsync::bench {

// A process of `wsync bench peers`, started by it with the environment of scripts/member.py: maps
// the models of the job, touches everything, and answers {"go": model, "kind": k} with the times of
// its copy and the digest of what it then holds, which is taken after them. `kind` is an index of
// available_copy_kinds(). On so many threads as cores can be given to each process. Runs until the
// benchmark closes the connection.
[[nodiscard]] Result<> run_copier();

}  // namespace wsync::bench
