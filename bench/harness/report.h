// Common parts of the reports of all benchmarks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/harness/machine.h"
#include "bench/harness/spread.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json spread_json(const Spread& spread);
[[nodiscard]] nlohmann::json machine_json(const Machine& machine);
// "Intel(R) Xeon(R) Processor (virtual machine)"
[[nodiscard]] std::string processor_text(const Machine& machine);
// Describes what disturbed a measurement, one sentence each. Empty if nothing did. Both values as
// of CpuLoad.
[[nodiscard]] std::vector<std::string> load_sentences(double others_busy, double stolen);
// The same as lines of text.
[[nodiscard]] std::string load_notes(double others_busy, double stolen);

}  // namespace wsync::bench
