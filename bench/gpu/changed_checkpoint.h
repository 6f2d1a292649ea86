// A copy of a checkpoint in which some elements are other ones.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

// Writes to `to`, a new directory, the checkpoint in `from` with this share (above 0, at most 1) of
// its elements of two bytes changed, at places chosen at random, always the same ones. kIo with the
// file; kInvalidInput for a file of weights without a header.
[[nodiscard]] Result<> write_changed_checkpoint(const std::string& from, const std::string& to,
                                                double share);

}  // namespace wsync::bench
