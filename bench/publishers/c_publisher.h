// The C side of `wsync bench sync --python`, and of `wsync bench whole`: a process that publishes a
// model with the C functions of the trainer library. It speaks as bench/publish.py does, which is
// the Python side.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

// The kind of a publish whose weights are written to the version before: between
// wsync_trainer_begin and wsync_trainer_end, by pointers. Its time begins with wsync_trainer_end.
inline constexpr const char* kPublishInPlace = "place";
// The kind of a publish of the weights as they are. A line "change HOW SHARE SEED" before it
// changes a part of them (weight_changes.h): HOW is "elements" or "tensors", SHARE is from 0 to 1.
// A line "load FILE" replaces them by those of a file of the same layout.
inline constexpr const char* kPublishChanged = "changed";

// Runs a process that a benchmark starts. It reads the job (see publish.py), prints
// {"event": "ready"}, and publishes once for each line "publish KIND STAMP" on standard input. It
// describes the tensors once, at its start, as a C program does whose weights stay where they are.
// For a line "floor KIND THREADS" it copies the weights once to other memory, with that copy, and
// says {"event": "copied", "ns": ...}; for "change" and "load" {"event": "changed", "elements",
// "bytes"}. Returns when its input ends. Errors: a job that cannot be read; those of the library's
// start.
[[nodiscard]] Result<> run_c_publisher(const std::string& job_file);

}  // namespace wsync::bench
