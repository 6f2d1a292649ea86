#include "shared/observe/metrics/failures.h"

#include <string>

#include "shared/observe/metrics/catalog.h"

namespace wsync::metrics {

std::map<ErrorCode, Counter> failure_counters(Registry& registry) {
  std::map<ErrorCode, Counter> counters;
  for (auto code = ErrorCode::kInvalidInput; code <= ErrorCode::kInternal;
       code = static_cast<ErrorCode>(static_cast<int>(code) + 1))
    counters.emplace(code, registry.counter(kFailures, {std::string(error_code_name(code))}));
  return counters;
}

}  // namespace wsync::metrics
