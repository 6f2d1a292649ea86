#include "shared/observe/metrics/failures.h"

#include <string>

#include "shared/observe/metrics/catalog.h"

namespace wsync::metrics {

std::map<ErrorCode, Counter> failure_counters(Registry& registry) {
  std::map<ErrorCode, Counter> counters;
  for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(kLastErrorCode); ++i)
    counters.emplace(ErrorCode{i},
                     registry.counter(kFailures, {std::string(error_code_name(ErrorCode{i}))}));
  return counters;
}

}  // namespace wsync::metrics
