// Output of `wsync bench pipeline` as a table and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/pipeline/pipeline_bench.h"

namespace wsync::bench {

[[nodiscard]] std::string to_text(const PipelineBenchResult& result);
[[nodiscard]] nlohmann::json to_json(const PipelineBenchResult& result);

// Converts the result to the common form of all suites.
[[nodiscard]] SuiteResult to_suite(const PipelineBenchResult& result);

}  // namespace wsync::bench
