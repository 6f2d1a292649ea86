// What `wsync bench schedule` prints and draws.
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
// Both cases over the link on one time axis, each measured and simulated, and below them the
// lanes of three turns, measured with overlap. An SVG.
[[nodiscard]] std::string to_svg(const ScheduleBenchResult& result);
// The same four as processes of a Chrome trace.
[[nodiscard]] std::vector<trace::ProcessTrace> to_trace(const ScheduleBenchResult& result);

// In the form of all suites. The link is a parameter only where it was given: one that the machine
// chose is in the details.
[[nodiscard]] SuiteResult to_suite(const ScheduleBenchResult& result);

}  // namespace wsync::bench
