// What `wsync_soak kills` reports of ranks that were killed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/soak/kill_run.h"

namespace wsync::soak {

[[nodiscard]] nlohmann::json to_json(const KillResult& result);
// Tables.
[[nodiscard]] std::string to_text(const KillResult& result);
// What was wrong, one line each; empty when nothing was.
[[nodiscard]] std::string complaint_of(const KillResult& result);

}  // namespace wsync::soak
