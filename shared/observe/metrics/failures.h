// Counters of failures, one for each code of an Error.
#pragma once

#include <map>

#include "shared/base/error.h"
#include "shared/observe/metrics/registry.h"

namespace wsync::metrics {

// wsync_failures_total of every code, as 0.
[[nodiscard]] std::map<ErrorCode, Counter> failure_counters(Registry& registry);

}  // namespace wsync::metrics
