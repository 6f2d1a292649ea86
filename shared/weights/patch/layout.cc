#include "shared/weights/patch/layout.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/word_sum.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {

std::uint32_t element_bytes(DType dtype) noexcept {
  return std::max<std::uint32_t>(1, dtype_bits(dtype) / 8);
}

Layout::Layout(const Manifest& manifest) : manifest_(&manifest) {
  tensors_.reserve(manifest.size());
  for (std::size_t i = 0; i < manifest.size(); ++i)
    tensors_.push_back({.seed = seed_of(manifest.tensor(i).name),
                        .bytes = manifest.byte_size(i),
                        .element_bytes = element_bytes(manifest.tensor(i).dtype)});
}

std::uint32_t Layout::block_count(std::uint32_t tensor) const {
  return static_cast<std::uint32_t>((tensors_[tensor].bytes + kBlockBytes - 1) / kBlockBytes);
}

std::uint64_t Layout::offset(const BlockPlace& place) noexcept { return place.block * kBlockBytes; }

std::uint64_t Layout::block_bytes(const BlockPlace& place) const {
  if (place.tensor >= tensors_.size() || place.block >= block_count(place.tensor)) return 0;
  return std::min(kBlockBytes, tensors_[place.tensor].bytes - offset(place));
}

std::string Layout::describe(const BlockPlace& place) const {
  return fmt::format("tensor '{}', block {} of {}", manifest_->tensor(place.tensor).name,
                     place.block + 1, block_count(place.tensor));
}

}  // namespace wsync::patch
