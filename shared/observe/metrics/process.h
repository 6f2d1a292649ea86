// What this process uses, as every Prometheus client library tells it.
#pragma once

#include <vector>

#include "shared/observe/metrics/registry.h"

namespace wsync::metrics {

// From /proc/self; what cannot be read is left out.
[[nodiscard]] std::vector<Reading> process_readings();

}  // namespace wsync::metrics
