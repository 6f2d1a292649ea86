#include "inference_side/reference_engine/generation/key_value_cache.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"

namespace wsync::engine::generation {

std::uint64_t CacheShape::block_bytes() const noexcept {
  return std::uint64_t{2} * layers * key_value_heads * head_dim * block_tokens * sizeof(float);
}

Result<KeyValueCache> KeyValueCache::create(const CacheShape& shape) {
  const std::uint64_t of_block = shape.block_bytes();
  const std::string what =
      fmt::format("keys and values in {} of {} ({} bytes each)", counted(shape.blocks, "block"),
                  counted(shape.block_tokens, "token"), of_block);
  if (of_block >
      std::numeric_limits<std::int64_t>::max() / std::max<std::uint64_t>(shape.blocks, 1))
    return fail(ErrorCode::kResourceExhausted, what + ": this exceeds the address space");
  const std::uint64_t bytes = of_block * shape.blocks;
  WSYNC_TRY(require_memory(bytes, what));
  KeyValueCache cache(shape);
  // Fill with zeros, which also touches every page, so that no step waits for a page fault.
  cache.data_.reset(new (std::nothrow) float[bytes / sizeof(float)]());
  if (cache.data_ == nullptr)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{}: no memory for {} bytes", what, bytes));
  return cache;
}

std::uint64_t KeyValueCache::bytes() const noexcept { return shape_.block_bytes() * shape_.blocks; }

void KeyValueCache::put(std::uint32_t layer, std::uint32_t block, std::uint32_t at,
                        std::span<const float> keys, std::span<const float> values) noexcept {
  const std::size_t head_dim = shape_.head_dim;
  for (std::uint32_t head = 0; head < shape_.key_value_heads; ++head) {
    const auto copy_to = [&](std::uint32_t index, std::span<const float> from) {
      std::ranges::copy(from.subspan(head * head_dim, head_dim),
                        head_at(layer, block, index).subspan(at * head_dim, head_dim).begin());
    };
    copy_to(head, keys);
    copy_to(shape_.key_value_heads + head, values);
  }
}

}  // namespace wsync::engine::generation
