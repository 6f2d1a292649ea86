// KeyValueCache: keys and values of earlier tokens in blocks (paged attention, arXiv 2309.06180),
// in float32, for all layers and the heads of this rank.
//
// Thread: confined to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "shared/base/error.h"

namespace wsync::engine::generation {

struct CacheShape {
  std::uint32_t layers = 0;
  std::uint32_t key_value_heads = 0;  // on this rank
  std::uint32_t head_dim = 0;
  std::uint32_t blocks = 0;
  std::uint32_t block_tokens = 0;
  // Size of one block over all layers.
  [[nodiscard]] std::uint64_t block_bytes() const noexcept;
};

class KeyValueCache {
 public:
  // Allocates the cache, filled with zeros. Returns kResourceExhausted if there is not enough
  // memory.
  [[nodiscard]] static Result<KeyValueCache> create(const CacheShape& shape);

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept;

  // Keys or values of one layer, block and head: [block_tokens, head_dim]. Indices must be within
  // the shape.
  [[nodiscard]] std::span<const float> keys(std::uint32_t layer, std::uint32_t block,
                                            std::uint32_t head) const noexcept {
    return head_at(layer, block, head);
  }
  [[nodiscard]] std::span<const float> values(std::uint32_t layer, std::uint32_t block,
                                              std::uint32_t head) const noexcept {
    return head_at(layer, block, shape_.key_value_heads + head);
  }
  // Stores keys and values of one token, for all heads, at position `at` of a block:
  // [key_value_heads * head_dim] each.
  void put(std::uint32_t layer, std::uint32_t block, std::uint32_t at, std::span<const float> keys,
           std::span<const float> values) noexcept;

 private:
  explicit KeyValueCache(const CacheShape& shape) : shape_(shape) {}
  // Layout: [layers, blocks, keys and values, key_value_heads, block_tokens, head_dim]. `head`
  // counts first the heads of the keys, then those of the values.
  [[nodiscard]] std::span<float> head_at(std::uint32_t layer, std::uint32_t block,
                                         std::uint32_t head) const noexcept {
    const std::size_t of_head = std::size_t{shape_.block_tokens} * shape_.head_dim;
    const std::size_t index =
        (std::size_t{layer} * shape_.blocks + block) * 2 * shape_.key_value_heads + head;
    return {data_.get() + index * of_head, of_head};
  }

  CacheShape shape_;
  std::unique_ptr<float[]> data_;
};

}  // namespace wsync::engine::generation
