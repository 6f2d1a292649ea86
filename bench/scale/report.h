// `wsync bench scale` in tables and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/scale/scale_bench.h"

namespace wsync::bench {

[[nodiscard]] std::string to_text(const ScaleResult& result);
[[nodiscard]] nlohmann::json to_json(const ScaleResult& result);
// In the form of all suites: one sample for each case, for nothing is measured.
[[nodiscard]] SuiteResult to_suite(const ScaleResult& result);

}  // namespace wsync::bench
