#include "shared/weights/patch/worth.h"

#include <bit>

#include "shared/base/format.h"
#include "shared/weights/patch/difference.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

constexpr std::uint64_t kSampledChunks = 128;
constexpr std::uint64_t kSampledFrom = 16 * kSampledChunks;  // chunks of a model: 8 MiB
// If so many times the limit is estimated, the patch is not made: with an estimate from so few
// bytes it could be a little below the limit otherwise.
constexpr double kSampleMargin = 1.5;

// What a byte of a dense block costs, in bytes that a load of everything copies in the same time:
// about 5 in the pause, because the engine maps it, checks the patch, and sums what it replaces.
// Making it costs as much before.
constexpr std::uint64_t kDenseByteCost = 10;
// By this share of the model's bytes: a patch that saves less than the rest of a pause is not worth
// its making, which the update waits for.
constexpr double kCostShareMax = 0.7;
// Dense blocks have the smallest cost for each byte of a patch.
static_assert(kPatchShareMax * kDenseByteCost >= kCostShareMax);

std::uint64_t size_of(const BlockView& block) noexcept {
  return block.gaps.size() + block.values.size() + kEntryBytesMax;
}

// Bits 0, step, 2 step ... of a word. `step`: 1, 2, 4 or 8.
constexpr std::uint64_t every_bit(std::uint64_t step) {
  std::uint64_t bits = 0;
  for (std::uint64_t at = 0; at < 64; at += step) bits |= std::uint64_t{1} << at;
  return bits;
}

// How many elements of so many bytes differ.
std::uint64_t changed_elements(const PatchWorth::Pair& pair, std::uint64_t element_bytes,
                               ChunkDifference& found) {
  find_differences(pair.base.data(), pair.target.data(), std::span(&found, 1));
  if (found.stripes == 0) return 0;
  std::uint64_t changed = 0;
  for (std::uint64_t mask : found.masks) {
    // The bit of the first byte of an element becomes the disjunction of those of all its bytes.
    for (std::uint64_t width = 1; width < element_bytes; width *= 2) mask |= mask >> width;
    changed += static_cast<std::uint64_t>(std::popcount(mask & every_bit(element_bytes)));
  }
  return changed;
}

}  // namespace

PatchWorth::PatchWorth(std::uint64_t model_bytes, std::uint64_t max_bytes,
                       std::uint64_t value_cost) noexcept
    : model_bytes_(model_bytes),
      max_bytes_(max_bytes),
      value_cost_(value_cost),
      max_cost_(static_cast<std::uint64_t>(kCostShareMax * static_cast<double>(model_bytes))) {}

std::uint64_t PatchWorth::cost_of(const BlockView& block) const noexcept {
  return block.dense ? kDenseByteCost * block.values.size() : value_cost_ * block.elements;
}

void PatchWorth::add(const BlockView& block) noexcept {
  bytes_ += size_of(block);
  cost_ += cost_of(block);
}

Result<> PatchWorth::check() const {
  if (bytes_ > max_bytes_)
    return fail(ErrorCode::kRefused,
                fmt::format("too much has changed: more than {} bytes", max_bytes_));
  if (cost_ > max_cost_)
    return fail(ErrorCode::kRefused,
                fmt::format("too much has changed: a patch would take more than {} of the time of "
                            "all bytes",
                            kCostShareMax));
  return {};
}

Result<> PatchWorth::sample(const Layout& layout, const Read& read) const {
  std::uint64_t chunks = 0;  // whole ones, of all tensors
  for (std::uint32_t tensor = 0; tensor < layout.manifest().size(); ++tensor)
    chunks += layout.tensor(tensor).bytes / kDifferenceBytes;
  if (chunks < kSampledFrom) return {};
  const double scale = static_cast<double>(chunks) / static_cast<double>(kSampledChunks);
  double bytes = 0;  // of the whole patch, if nothing changes in what was not looked at yet
  double cost = 0;
  std::uint32_t tensor = 0;
  std::uint64_t before = 0;  // chunks of the tensors before this one
  ChunkDifference found;
  for (std::uint64_t i = 0; i < kSampledChunks; ++i) {
    const std::uint64_t chunk = i * chunks / kSampledChunks;
    while (chunk - before >= layout.tensor(tensor).bytes / kDifferenceBytes)
      before += layout.tensor(tensor++).bytes / kDifferenceBytes;
    const auto pair = read(tensor, (chunk - before) * kDifferenceBytes, kDifferenceBytes);
    if (!pair) return {};
    const std::uint64_t element = layout.tensor(tensor).element_bytes;
    const std::uint64_t changed = changed_elements(*pair, element, found);
    // A value that changes alone takes a byte for its position.
    const bool is_dense = changed * (element + 1) >= kDifferenceBytes;
    bytes += scale * static_cast<double>(is_dense ? kDifferenceBytes : changed * (element + 1));
    cost += scale * static_cast<double>(is_dense ? kDenseByteCost * kDifferenceBytes
                                                 : changed * value_cost_);
    if (bytes > kSampleMargin * static_cast<double>(max_bytes_) ||
        cost > kSampleMargin * kCostShareMax * static_cast<double>(model_bytes_))
      return fail(
          ErrorCode::kRefused,
          fmt::format("too much has changed: a patch would have {:.0f} bytes or more, at "
                      "most {} are worth one, and take {:.1f} times the time of all bytes "
                      "or more, at most {} are worth one",
                      bytes, max_bytes_, cost / static_cast<double>(model_bytes_), kCostShareMax));
  }
  return {};
}

}  // namespace wsync::patch
