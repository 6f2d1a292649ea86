// How many files this process may have open.
#pragma once

#include <cstdint>

#include "shared/base/error.h"

namespace wsync {

// Raises the soft limit of open files to the hard limit, which needs no privilege. Returns the
// limit that is then in force; an unlimited one is returned as the greatest number. Thread: any.
std::uint64_t raise_open_files() noexcept;

// Raises the limit as above. kResourceExhausted, with a remedy, if it is then below `wanted`.
[[nodiscard]] Result<> allow_open_files(std::uint64_t wanted);

}  // namespace wsync
