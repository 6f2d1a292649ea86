// Resource usage of this process, under the names that every Prometheus client library uses.
#pragma once

#include <vector>

#include "shared/observe/metrics/registry.h"

namespace wsync::metrics {

// Reads /proc/self. Leaves out values that cannot be read.
[[nodiscard]] std::vector<Reading> process_readings();

}  // namespace wsync::metrics
