// BlockPool: keeps track of which sequences use which blocks of keys and values, and of which full
// blocks other sequences with the same first tokens can share (paged attention, arXiv 2309.06180).
//
// A block is free, used by one or more sequences, or cached: unused, but full and part of a known
// prefix. If no block is free, the least recently used cached block is evicted.
//
// Prefixes form a tree. Each node holds the tokens of one block that follow the parent's prefix.
// Digests only find candidates, and then the tokens themselves are compared; a crafted prompt
// therefore cannot read the keys of another prompt.
//
// Thread: confined to one thread at a time.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"

namespace wsync::engine::generation {

// A known prefix of whole blocks. Numbers are never reused.
enum class Prefix : std::uint64_t { kEmpty = 0 };

class BlockPool {
 public:
  struct Found {
    std::uint32_t block = 0;
    Prefix prefix = Prefix::kEmpty;  // the prefix that ends with this block
  };

  explicit BlockPool(std::uint32_t blocks);

  // Returns a free or evicted block with one user, or std::nullopt if all blocks are in use.
  [[nodiscard]] std::optional<std::uint32_t> allocate();
  // Finds the block that holds `tokens` after the prefix `before`, and adds the caller to its
  // users.
  [[nodiscard]] std::optional<Found> find(Prefix before, std::span<const Token> tokens);
  // Registers that `block`, which is in use, holds `tokens` after `before`. Returns the prefix that
  // ends with them. If another block is already registered for this prefix, the prefix of that
  // block is returned.
  [[nodiscard]] Prefix publish(std::uint32_t block, Prefix before, std::span<const Token> tokens);
  // Removes one user of the block.
  void release(std::uint32_t block);
  // Forgets all prefixes. Cached blocks become free at once, used blocks when their users release
  // them.
  void forget_prefixes();

  // Number of blocks that allocate() can still return.
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
    // Low half of an XXH3-128 digest of the key.
    [[nodiscard]] std::size_t operator()(const Key& key) const noexcept;
  };
  using Known = std::unordered_map<Key, Found, KeyHash>;
  struct Block {
    std::uint32_t users = 0;
    const Known::value_type* known = nullptr;     // set if the block holds a known prefix
    std::list<std::uint32_t>::iterator in_cache;  // valid if the block is cached
  };

  // Takes the least recently used block out of the cache, for another use.
  std::uint32_t evict();

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;  // the last one is allocated next
  std::list<std::uint32_t> cached_;  // least recently used first
  Known known_;
  std::uint64_t last_prefix_ = 0;
};

}  // namespace wsync::engine::generation
