// Checks that the data of a benchmark fits in memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::bench {

// kResourceExhausted unless `copies` copies of `bytes` bytes fit in the available memory. The error
// says how much is needed, how much there is, and the largest size that fits. `whom`: whose copies
// they are, such as "for 4 engines". `copies` is not 0.
[[nodiscard]] Result<> require_copies(std::uint64_t copies, std::uint64_t bytes,
                                      std::string_view whom);

}  // namespace wsync::bench
