// The C side of `wsync bench sync --python`: a process that publishes a model with the C functions
// of the trainer library. It speaks as bench/publish.py does, which is the Python side.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

// Runs a process that `wsync bench sync --python` starts. It reads the job (see publish.py), prints
// {"event": "ready"}, and publishes once for each line "publish KIND STAMP" on standard input. It
// describes the tensors once, at its start, as a C program does whose weights stay where they are.
// Returns when its input ends. Errors: a job that cannot be read; those of the library's start.
[[nodiscard]] Result<> run_c_publisher(const std::string& job_file);

}  // namespace wsync::bench
