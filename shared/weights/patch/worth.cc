#include "shared/weights/patch/worth.h"

#include <cstddef>
#include <vector>

#include "shared/base/format.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

constexpr std::size_t kSampledBlocks = 32;
// If so many times the limit is estimated, the patch is not made: with an estimate from so few
// blocks it could be a little below the limit otherwise.
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

Result<> PatchWorth::sample(const Layout& layout, const MakeBlock& make) const {
  std::vector<BlockPlace> blocks;
  for (std::uint32_t tensor = 0; tensor < layout.manifest().size(); ++tensor)
    for (std::uint32_t block = 0; block < layout.block_count(tensor); ++block)
      blocks.push_back({.tensor = tensor, .block = block});
  if (blocks.size() <= kSampledBlocks) return {};
  std::uint64_t of = 0;
  for (std::size_t i = 0; i < kSampledBlocks; ++i)
    of += layout.block_bytes(blocks[i * blocks.size() / kSampledBlocks]);
  const auto model = static_cast<double>(model_bytes_);
  const double scale = model / static_cast<double>(of);
  double bytes = 0;  // of the whole patch, if no other block changes
  double cost = 0;
  // Where everything changes, the first few blocks show it.
  for (std::size_t i = 0; i < kSampledBlocks; ++i) {
    const auto block = make(blocks[i * blocks.size() / kSampledBlocks]);
    if (!block) continue;
    bytes += scale * static_cast<double>(size_of(block->view()));
    cost += scale * static_cast<double>(cost_of(block->view()));
    if (bytes > kSampleMargin * static_cast<double>(max_bytes_) ||
        cost > kSampleMargin * kCostShareMax * model)
      return fail(ErrorCode::kRefused,
                  fmt::format("too much has changed: a patch would have {:.0f} bytes or more, at "
                              "most {} are worth one, and take {:.1f} times the time of all bytes "
                              "or more, at most {} are worth one",
                              bytes, max_bytes_, cost / model, kCostShareMax));
  }
  return {};
}

}  // namespace wsync::patch
