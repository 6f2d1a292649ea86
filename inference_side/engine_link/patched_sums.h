// What a rank returns of a patch that it has written.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/split_sum.h"

namespace wsync::engine {

// Sums of the touched words of each of the rank's tensors, and what was written.
struct PatchedSums {
  std::vector<SplitSum> before;
  std::vector<SplitSum> after;
  // The same of the blocks that a scrub had read already; empty without one.
  std::vector<SplitSum> read_before;
  std::vector<SplitSum> read_after;
  std::uint64_t written_bytes = 0;
};

}  // namespace wsync::engine
