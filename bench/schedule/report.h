// Output of `wsync bench schedule`: tables, pictures and traces.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/result.h"
#include "bench/schedule/schedule_bench.h"
#include "shared/observe/trace/chrome_trace.h"

namespace wsync::bench {

[[nodiscard]] std::string_view case_name(CaseKind kind) noexcept;
[[nodiscard]] nlohmann::json to_json(const ScheduleBenchResult& result);
[[nodiscard]] std::string to_text(const ScheduleBenchResult& result);
// An SVG with both cases over the link on one time axis, each measured and simulated. Below them
// are the lanes of three turns, measured with overlap.
[[nodiscard]] std::string to_svg(const ScheduleBenchResult& result);
// The same four as processes of a Chrome trace.
[[nodiscard]] std::vector<trace::ProcessTrace> to_trace(const ScheduleBenchResult& result);

// Converts the result to the common form of all suites. The link is a parameter only if the user
// specified it. A link that the benchmark chose is in the details.
[[nodiscard]] SuiteResult to_suite(const ScheduleBenchResult& result);

}  // namespace wsync::bench
