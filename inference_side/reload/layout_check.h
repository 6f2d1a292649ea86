// Checks whether the tensors of an engine fit the layout that a trainer offers, before any byte is
// sent. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shared/control/messages.h"
#include "shared/weights/manifest.h"

namespace wsync::reload {

// Returns the differences between the manifest and the tensors of one rank: a name that is not in
// the manifest (kMissing, with the nearest name of the manifest that the rank does not take),
// another dtype or shape, a range outside of the shape. Empty: the tensors fit. There are at most
// limits::kProblemCount problems; the last one then contains the number of further problems. Only
// the first few dozen problems have a nearest name.
[[nodiscard]] std::vector<control::Problem> check_layout(
    const Manifest& manifest, std::span<const control::EngineTensor> tensors);

// Returns the parts of the manifest that no rank of a replica takes: whole tensors (kExtra, with
// the nearest name that a rank takes and the manifest lacks) and parts of tensors (kRange, with one
// uncovered block).
// `ranks` contains the tensors of each rank. Ranges may overlap, as those of replicated tensors do.
// Entries that do not fit the manifest cover nothing; check_layout reports them.
[[nodiscard]] std::vector<control::Problem> check_replica_coverage(
    const Manifest& manifest, std::span<const std::span<const control::EngineTensor>> ranks);

// The candidate with the smallest edit distance to `name`. If every distance is more than a third
// of the length of `name`, the first candidate that has a prefix more or less, up to a dot
// ("model.a" for "a"). Empty if there is none.
[[nodiscard]] std::string nearest_name(std::string_view name,
                                       std::span<const std::string_view> candidates);

}  // namespace wsync::reload
