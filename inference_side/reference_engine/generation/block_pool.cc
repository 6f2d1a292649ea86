#include "inference_side/reference_engine/generation/block_pool.h"

#include <numeric>

#include "shared/base/check.h"
#include "shared/base/digest.h"

namespace wsync::engine::generation {

std::size_t BlockPool::KeyHash::operator()(const Key& key) const noexcept {
  const Digest tokens = digest_of(std::as_bytes(std::span(key.tokens)));
  const std::array<std::uint64_t, 3> chain{static_cast<std::uint64_t>(key.before), tokens.low,
                                           tokens.high};
  return digest_of(std::as_bytes(std::span(chain))).low;
}

BlockPool::BlockPool(std::uint32_t blocks) : blocks_(blocks), free_(blocks) {
  std::iota(free_.rbegin(), free_.rend(), std::uint32_t{0});
}

std::optional<std::uint32_t> BlockPool::allocate() {
  if (free_.empty() && cached_.empty()) return std::nullopt;
  std::uint32_t block = 0;
  if (free_.empty()) {
    block = evict();
  } else {
    block = free_.back();
    free_.pop_back();
  }
  blocks_[block].users = 1;
  return block;
}

std::uint32_t BlockPool::evict() {
  const std::uint32_t block = cached_.front();
  cached_.pop_front();
  known_.erase(known_.find(blocks_[block].known->first));
  blocks_[block].known = nullptr;
  return block;
}

std::optional<BlockPool::Found> BlockPool::find(Prefix before, std::span<const Token> tokens) {
  const auto at = known_.find(Key{.before = before, .tokens = {tokens.begin(), tokens.end()}});
  if (at == known_.end()) return std::nullopt;
  Block& block = blocks_[at->second.block];
  if (block.users == 0) cached_.erase(block.in_cache);
  ++block.users;
  return at->second;
}

Prefix BlockPool::publish(std::uint32_t block, Prefix before, std::span<const Token> tokens) {
  WSYNC_CHECK(blocks_[block].users > 0 && blocks_[block].known == nullptr,
              "a block is published once, by its user");
  const Found found{.block = block, .prefix = Prefix{last_prefix_ + 1}};
  const auto [at, is_new] =
      known_.try_emplace(Key{.before = before, .tokens = {tokens.begin(), tokens.end()}}, found);
  if (is_new) {
    blocks_[block].known = &*at;
    ++last_prefix_;
  }
  return at->second.prefix;
}

void BlockPool::release(std::uint32_t block) {
  Block& released = blocks_[block];
  WSYNC_CHECK(released.users > 0, "a block is released by its users only");
  if (--released.users > 0) return;
  if (released.known != nullptr)
    released.in_cache = cached_.insert(cached_.end(), block);
  else
    free_.push_back(block);
}

void BlockPool::forget_prefixes() {
  for (Block& block : blocks_) block.known = nullptr;
  known_.clear();
  free_.insert(free_.end(), cached_.begin(), cached_.end());
  cached_.clear();
}

std::uint32_t BlockPool::available() const noexcept {
  return static_cast<std::uint32_t>(free_.size() + cached_.size());
}

std::uint32_t BlockPool::used() const noexcept {
  return static_cast<std::uint32_t>(blocks_.size()) - available();
}

std::uint32_t BlockPool::cached() const noexcept {
  return static_cast<std::uint32_t>(cached_.size());
}

}  // namespace wsync::engine::generation
