// What one forward and one backward are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wsync::training {

// Whole sequences of one length: token ids and what each is followed by.
struct MicroBatch {
  std::size_t sequence = 0;
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint32_t> targets;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

}  // namespace wsync::training
