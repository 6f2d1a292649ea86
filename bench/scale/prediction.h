// Result of the simulations in this directory for one update.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/scale/shared_links.h"

namespace wsync::bench {

// Sizes of a model's tensors, in the order of the model, as the algorithms split it.
struct ModelBytes {
  std::vector<std::uint64_t> tensors;
  [[nodiscard]] std::uint64_t total() const noexcept {
    std::uint64_t sum = 0;
    for (const std::uint64_t bytes : tensors) sum += bytes;
    return sum;
  }
};

struct Prediction {
  double seconds = 0;
  std::uint64_t buckets = 0;
  std::vector<LinkUse> use;  // use of each link of one host; all hosts are equal
  // Returns the busiest link, which limits the others.
  [[nodiscard]] LinkUse bottleneck() const {
    LinkUse max;
    for (const LinkUse& link : use)
      if (link.seconds > max.seconds) max = link;
    return max;
  }
};

}  // namespace wsync::bench
