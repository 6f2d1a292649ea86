// What `wsync bench peers` prints: the documented schema of --json, a table for people, and the
// form of all suites.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/peers/peers_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const PeersBenchResult& result);
[[nodiscard]] std::string to_text(const PeersBenchResult& result);
[[nodiscard]] SuiteResult to_suite(const PeersBenchResult& result);
// A sentence for each peer that was skipped or failed, and for what disturbed the measurement.
[[nodiscard]] std::vector<std::string> notes_of(const PeersBenchResult& result);

}  // namespace wsync::bench
