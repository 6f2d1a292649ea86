// Report of `wsync_soak torn`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/soak/torn_run.h"

namespace wsync::soak {

[[nodiscard]] nlohmann::json to_json(const TornResult& result);
// Formats the table.
[[nodiscard]] std::string to_text(const TornResult& result);
// Describes what failed and where, one line each. Empty if nothing failed.
[[nodiscard]] std::string complaint_of(const TornResult& result);

}  // namespace wsync::soak
