// Output of `wsync bench scale` as tables and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/scale/scale_bench.h"

namespace wsync::bench {

[[nodiscard]] std::string to_text(const ScaleResult& result);
[[nodiscard]] nlohmann::json to_json(const ScaleResult& result);
// Converts the result to the common form of all suites. Each case has one sample, because nothing
// is measured.
[[nodiscard]] SuiteResult to_suite(const ScaleResult& result);

}  // namespace wsync::bench
