// Making and applying patches (shared/weights/patch) of weights of which a share changes at random,
// each by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/harness/rows.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Adds a row for each share of changed elements. The baseline is the streaming copy of as many
// bytes, which is among the other rows. Each measurement checks its result: the blocks that were
// made are those of a patch that was made before, and the weights have the sum of the target
// afterwards. Needs memory for two copies.
[[nodiscard]] Result<> add_patch_codec_rows(std::uint64_t bytes, std::vector<Row>& rows);

}  // namespace wsync::bench
