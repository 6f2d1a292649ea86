// Output of `wsync bench sync --python`: the documented schema of --json, and a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/publishers/publishers_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const PublishersBenchResult& result);
[[nodiscard]] std::string to_text(const PublishersBenchResult& result);
// Converts the result to the common form of all suites: "publish, numpy" etc.
[[nodiscard]] SuiteResult to_suite(const PublishersBenchResult& result);

}  // namespace wsync::bench
