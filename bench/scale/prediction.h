// What the simulations of this folder say of one update.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/scale/shared_links.h"

namespace wsync::bench {

// Bytes of a model, as the algorithms cut it: tensors in the order of the model.
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
  std::vector<LinkUse> use;  // of each link; on one host, for all are alike
  // The link that is busiest; the others wait for it.
  [[nodiscard]] LinkUse bottleneck() const {
    LinkUse max;
    for (const LinkUse& link : use)
      if (link.seconds > max.seconds) max = link;
    return max;
  }
};

}  // namespace wsync::bench
