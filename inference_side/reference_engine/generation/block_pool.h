// BlockPool: who uses which block of keys and values, and which full blocks can be used again by
// sequences that begin with the same tokens (paged attention, arXiv 2309.06180).
//
// A block is free, used by one or more sequences, or cached: used by none, but full of a known
// prefix. When no block is free the cached one whose last use is the longest ago is taken.
//
// Prefixes are the nodes of a tree: each is a block's tokens after the prefix before them. Digests
// only find them; the tokens are compared, so no prompt can be made that reads another's keys.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"

namespace wsync::engine::generation {

// A known prefix of whole blocks. A number is never used twice.
enum class Prefix : std::uint64_t { kEmpty = 0 };

class BlockPool {
 public:
  struct Found {
    std::uint32_t block = 0;
    Prefix prefix = Prefix::kEmpty;  // that ends with it
  };

  explicit BlockPool(std::uint32_t blocks);

  // A block for one user, free or cached before; nothing when all are used.
  [[nodiscard]] std::optional<std::uint32_t> allocate();
  // The block that holds `tokens` after `before`; the caller becomes one of its users.
  [[nodiscard]] std::optional<Found> find(Prefix before, std::span<const Token> tokens);
  // Makes known that `block`, which is used, holds `tokens` after `before`. Returns the prefix that
  // ends with them; that of another block, if one is known already.
  [[nodiscard]] Prefix publish(std::uint32_t block, Prefix before, std::span<const Token> tokens);
  // One user less.
  void release(std::uint32_t block);
  // No prefix is known any more: cached blocks are free, those that are used will be.
  void forget_prefixes();

  // Blocks that allocate() can give.
  [[nodiscard]] std::uint32_t available() const noexcept;
  [[nodiscard]] std::uint32_t used() const noexcept;
  [[nodiscard]] std::uint32_t cached() const noexcept;

 private:
  struct Key {
    Prefix before = Prefix::kEmpty;
    std::vector<Token> tokens;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    [[nodiscard]] std::size_t operator()(const Key& key) const noexcept;  // of its XXH3-128 digest
  };
  using Known = std::unordered_map<Key, Found, KeyHash>;
  struct Block {
    std::uint32_t users = 0;
    const Known::value_type* known = nullptr;     // if it holds a known prefix
    std::list<std::uint32_t>::iterator in_cache;  // if it is cached
  };

  // A cached block that will be used for something else.
  std::uint32_t evict();

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;  // the next one last
  std::list<std::uint32_t> cached_;  // the longest unused first
  Known known_;
  std::uint64_t last_prefix_ = 0;
};

}  // namespace wsync::engine::generation
