// Output of `wsync bench peers`: the documented schema of --json, a table, and the common form of
// all suites.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/peers/peers_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const PeersBenchResult& result);
[[nodiscard]] std::string to_text(const PeersBenchResult& result);
[[nodiscard]] SuiteResult to_suite(const PeersBenchResult& result);
// One sentence per skipped or failed peer and per disturbance of the measurement.
[[nodiscard]] std::vector<std::string> notes_of(const PeersBenchResult& result);

}  // namespace wsync::bench
