// Changes a part of a model's weights in place, as a training step does. Pure; deterministic for a
// seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace wsync::bench {

// A tensor to be changed. Its memory is borrowed.
struct ChangedTensor {
  std::string name;
  std::size_t element_bytes = 0;  // 1, 2, 4 or 8; types of less than 8 bits count by byte
  std::span<std::byte> bytes;
};

// What was changed.
struct WeightChanges {
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
};

// Changes each element with the probability `share` (0 to 1), independently. A changed element
// always has other bits than before.
WeightChanges change_elements(std::span<const ChangedTensor> tensors, double share,
                              std::uint64_t seed);
// Changes every element of some tensors, until they have at least `share` of the model's bytes:
// those of experts (".experts." in their name) if the model has any. Which ones follows from the
// seed.
WeightChanges change_tensors(std::span<const ChangedTensor> tensors, double share,
                             std::uint64_t seed);

}  // namespace wsync::bench
