// What the trace of an update explains of its time, from the beginning of the snapshot to the last
// resume: how long each kind of work took, and how much no span of any process shows.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/base/error.h"

namespace wsync::bench {

// The share of the newest update in a Chrome trace, as `wsync trace get` writes it, in percent.
// Spans that show only that the coordinator waits for others do not count: its rounds, its
// questions to sidecars, and the snapshot as a whole, whose parts have spans. kNotFound if the
// trace has no complete update; kInvalidInput if it is not such a trace. Pure.
[[nodiscard]] Result<double> unexplained_percent(const nlohmann::json& trace);

// One kind of work of an update, in all processes.
struct WorkTime {
  std::string work;  // name of its spans, without numbers: "snapshot of bucket"
  double ms = 0;     // in which at least one of its spans runs
  friend bool operator==(const WorkTime&, const WorkTime&) = default;
};
// The kinds of work of the newest update, in the order of their beginnings, without the spans that
// only wait. Kinds that run at the same time each have that time. Errors as above. Pure.
[[nodiscard]] Result<std::vector<WorkTime>> work_times(const nlohmann::json& trace);

}  // namespace wsync::bench
