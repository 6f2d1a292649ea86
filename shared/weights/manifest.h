// Manifest: the ordered list of the tensors of a model. Immutable once created; may be read from
// any thread. Moving is cheap; copying copies everything.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/weights/dtype.h"

namespace wsync {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<std::uint64_t> shape;  // C order; {} is a scalar
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
  // Size of the dense tensor in bytes. Errors as for tensor_byte_size, with the name of the tensor.
  [[nodiscard]] Result<std::uint64_t> byte_size() const;
};

// Returns "name BF16 [2, 3]", the form of a tensor in error sentences.
[[nodiscard]] std::string describe(const TensorInfo& tensor);

// Tensors in layer order: embeddings first, then layers by number (1, 2, 10), final norm, head.
// Inside a layer they are ordered by name with numbers as numbers, so that the experts of a layer
// are together. The order depends only on the set of names.
class Manifest {
 public:
  Manifest() = default;  // no tensors
  // Orders the tensors. kInvalidInput if a name is empty, too long or duplicate, if a limit of
  // weight_limits.h (tensors, rank, model bytes) is exceeded, or if a byte size is not valid.
  [[nodiscard]] static Result<Manifest> create(std::vector<TensorInfo> tensors);

  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  [[nodiscard]] std::span<const TensorInfo> tensors() const noexcept { return tensors_; }
  [[nodiscard]] const TensorInfo& tensor(std::size_t index) const { return tensors_[index]; }
  [[nodiscard]] std::uint64_t byte_size(std::size_t index) const { return bytes_[index]; }
  // Tensors of one layer are adjacent. Layers are numbered 0, 1, ... without gaps in manifest
  // order, so embeddings, if present, are layer 0 and model.layers.0 is layer 1.
  [[nodiscard]] std::uint32_t layer(std::size_t index) const { return layers_[index]; }
  [[nodiscard]] std::uint32_t layer_count() const noexcept {
    return layers_.empty() ? 0 : layers_.back() + 1;
  }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  // Returns the index of the tensor, or std::nullopt if there is none of that name.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;

  // XXH3-128 of names, dtypes, shapes and their order. Equal models have equal digests, independent
  // of the order in which they were described.
  [[nodiscard]] const Digest& layout_digest() const noexcept { return layout_digest_; }

  void encode(ByteWriter& writer) const;
  // Reads the output of encode(). kInvalidInput as for create(), and if the tensors are not in
  // layer order.
  [[nodiscard]] static Result<Manifest> decode(ByteReader& reader);

  friend bool operator==(const Manifest& a, const Manifest& b) { return a.tensors_ == b.tensors_; }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::uint32_t> layers_;
  std::vector<std::uint32_t> by_name_;  // indices, sorted by name
  std::uint64_t total_bytes_ = 0;
  Digest layout_digest_ = layout_digest_of({});
  [[nodiscard]] static Digest layout_digest_of(std::span<const TensorInfo> tensors);
};

}  // namespace wsync
