// How much of an update its trace does not explain: the time from the beginning of the snapshot to
// the last resume in which no span of any process shows what was done.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

// The share of the newest update in a Chrome trace, as `wsync trace get` writes it, in percent.
// Spans that show only that the coordinator waits for others do not count: its rounds, its
// questions to sidecars, and the snapshot as a whole, whose parts have spans. kNotFound if the
// trace has no complete update; kInvalidInput if it is not such a trace. Pure.
[[nodiscard]] Result<double> unexplained_percent(const nlohmann::json& trace);

}  // namespace wsync::bench
