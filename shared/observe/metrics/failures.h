// Counters of failures, one for each code of an Error.
#pragma once

#include <map>

#include "shared/base/error.h"
#include "shared/observe/metrics/registry.h"

namespace wsync::metrics {

// Creates the series of wsync_failures_total for every error code, with value 0.
[[nodiscard]] std::map<ErrorCode, Counter> failure_counters(Registry& registry);

}  // namespace wsync::metrics
