#include "bench/publishers/weight_changes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace wsync::bench {
namespace {

// From here on a number for each element is cheaper than a logarithm for each that changes.
constexpr double kDenseShare = 0.05;

// The lowest byte of a little-endian element gets another value.
void flip(std::byte& lowest) { lowest ^= std::byte{1}; }

std::uint64_t change_all(const ChangedTensor& tensor) {
  for (std::size_t at = 0; at < tensor.bytes.size(); at += tensor.element_bytes)
    flip(tensor.bytes[at]);
  return tensor.bytes.size() / tensor.element_bytes;
}

std::uint64_t change_some(const ChangedTensor& tensor, double share, std::mt19937_64& random) {
  const std::uint64_t elements = tensor.bytes.size() / tensor.element_bytes;
  std::uint64_t changed = 0;
  if (share >= kDenseShare) {
    const auto below = static_cast<std::uint64_t>(share * 65536.0);
    std::uint64_t numbers = 0;
    for (std::uint64_t i = 0; i < elements; ++i, numbers >>= 16U) {
      if (i % 4 == 0) numbers = random();
      if ((numbers & 0xFFFFU) >= below) continue;
      flip(tensor.bytes[i * tensor.element_bytes]);
      ++changed;
    }
    return changed;
  }
  // The distance to the next one that changes is distributed geometrically.
  std::geometric_distribution<std::uint64_t> gap(share);
  for (std::uint64_t i = gap(random); i < elements; i += 1 + gap(random)) {
    flip(tensor.bytes[i * tensor.element_bytes]);
    ++changed;
  }
  return changed;
}

}  // namespace

WeightChanges change_elements(std::span<const ChangedTensor> tensors, double share,
                              std::uint64_t seed) {
  WeightChanges done;
  if (share <= 0) return done;
  std::mt19937_64 random(seed);
  for (const ChangedTensor& tensor : tensors) {
    const std::uint64_t changed =
        share >= 1 ? change_all(tensor) : change_some(tensor, share, random);
    done.elements += changed;
    done.bytes += changed * tensor.element_bytes;
  }
  return done;
}

WeightChanges change_tensors(std::span<const ChangedTensor> tensors, double share,
                             std::uint64_t seed) {
  std::uint64_t all_bytes = 0;
  std::vector<const ChangedTensor*> candidates;
  for (const ChangedTensor& tensor : tensors) {
    all_bytes += tensor.bytes.size();
    if (tensor.name.find(".experts.") != std::string::npos) candidates.push_back(&tensor);
  }
  if (candidates.empty())
    for (const ChangedTensor& tensor : tensors) candidates.push_back(&tensor);
  std::mt19937_64 random(seed);
  std::ranges::shuffle(candidates, random);
  WeightChanges done;
  for (const ChangedTensor* tensor : candidates) {
    if (static_cast<double>(done.bytes) >= share * static_cast<double>(all_bytes)) break;
    done.elements += change_all(*tensor);
    done.bytes += tensor->bytes.size();
  }
  return done;
}

}  // namespace wsync::bench
