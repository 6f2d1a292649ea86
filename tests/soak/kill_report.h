// Report of `wsync_soak kills`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/soak/kill_run.h"

namespace wsync::soak {

[[nodiscard]] nlohmann::json to_json(const KillResult& result);
// Formats the tables.
[[nodiscard]] std::string to_text(const KillResult& result);
// Describes what failed, one line each. Empty if nothing failed.
[[nodiscard]] std::string complaint_of(const KillResult& result);

}  // namespace wsync::soak
