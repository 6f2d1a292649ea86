// What `wsync_soak torn` reports.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/soak/torn_run.h"

namespace wsync::soak {

[[nodiscard]] nlohmann::json to_json(const TornResult& result);
// A table.
[[nodiscard]] std::string to_text(const TornResult& result);
// What was wrong and where, one line each; empty when nothing was.
[[nodiscard]] std::string complaint_of(const TornResult& result);

}  // namespace wsync::soak
