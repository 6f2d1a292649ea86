// How the tensors of a model are divided for patches: into blocks of kBlockBytes, which begin at
// multiples of it in each tensor, and into elements.
//
// Immutable once created; may be read from any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shared/weights/manifest.h"

namespace wsync::patch {

// Names a block. Blocks are ordered by tensor, then by number.
struct BlockPlace {
  std::uint32_t tensor = 0;  // index in the manifest
  std::uint32_t block = 0;   // number in the tensor
  friend auto operator<=>(const BlockPlace&, const BlockPlace&) = default;
};

// What is needed to know of a tensor to make or apply its blocks.
struct PatchedTensor {
  std::uint64_t seed = 0;           // of its sums: seed_of() its name
  std::uint64_t bytes = 0;          // of the whole tensor
  std::uint32_t element_bytes = 1;  // 1, 2, 4 or 8
};

class Layout {
 public:
  // The manifest is borrowed and must outlive this object.
  explicit Layout(const Manifest& manifest);
  // The same, but keeps the manifest.
  explicit Layout(std::shared_ptr<const Manifest> manifest) : Layout(*manifest) {
    keep_ = std::move(manifest);
  }

  [[nodiscard]] const Manifest& manifest() const noexcept { return *manifest_; }
  [[nodiscard]] const PatchedTensor& tensor(std::uint32_t index) const { return tensors_[index]; }
  [[nodiscard]] std::uint32_t block_count(std::uint32_t tensor) const;
  // Where the block begins in its tensor, in bytes.
  [[nodiscard]] static std::uint64_t offset(const BlockPlace& place) noexcept;
  // Size of the block in bytes; 0 if there is no such block.
  [[nodiscard]] std::uint64_t block_bytes(const BlockPlace& place) const;
  // "tensor 'a', block 3 of 7": numbers from 1, for people.
  [[nodiscard]] std::string describe(const BlockPlace& place) const;

 private:
  const Manifest* manifest_;
  std::shared_ptr<const Manifest> keep_;
  std::vector<PatchedTensor> tensors_;
};

// Bytes of an element of this type: those of the type, or 1 for types of less than 8 bits.
[[nodiscard]] std::uint32_t element_bytes(DType dtype) noexcept;

}  // namespace wsync::patch
