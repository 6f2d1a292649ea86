// Whether the tensors of an engine fit the layout that a trainer offers: asked before anything
// moves. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shared/control/messages.h"
#include "shared/weights/manifest.h"

namespace wsync::reload {

// What does not fit between the manifest and the tensors of one rank: a name that the manifest
// lacks (kMissing, with the nearest name), another dtype or shape, a range that is outside the
// shape. Empty = it fits. At most limits::kProblemCount; the last one then says how many more there
// are. Near names are given for the first few dozen only.
[[nodiscard]] std::vector<control::Problem> check_layout(
    const Manifest& manifest, std::span<const control::EngineTensor> tensors);

// What no rank of a replica takes: whole tensors (kExtra, with the nearest name that a rank does
// take) and parts of tensors (kRange, naming one hole). `ranks` has the tensors of each rank;
// ranges may overlap (replicated tensors do). Entries that do not fit the manifest cover nothing;
// check_layout reports those.
[[nodiscard]] std::vector<control::Problem> check_replica_coverage(
    const Manifest& manifest, std::span<const std::span<const control::EngineTensor>> ranks);

// The candidate with the smallest edit distance to `name`, empty when all are farther than a third
// of its length.
[[nodiscard]] std::string nearest_name(std::string_view name,
                                       std::span<const std::string_view> candidates);

}  // namespace wsync::reload
