// WritableArena: an arena that one holder writes. No process reads it, and no snapshot of this
// process gets it, until the holder completes it or destroys this object.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "shared/base/shared_memory.h"

namespace wsync::publish {

// Thread: as WriteLease. May be destroyed on any thread.
class WritableArena {
 public:
  // `claim` is released after the lease has ended.
  WritableArena(std::shared_ptr<SharedArena> arena, WriteLease lease, std::shared_ptr<void> claim)
      : arena_(std::move(arena)), claim_(std::move(claim)), lease_(std::move(lease)) {}
  [[nodiscard]] const std::shared_ptr<SharedArena>& arena() const noexcept { return arena_; }
  [[nodiscard]] WriteLease& lease() noexcept { return lease_; }
  [[nodiscard]] const WriteLease& lease() const noexcept { return lease_; }
  // As long as this exists, the memory stays mapped, and no holder gets the arena.
  [[nodiscard]] std::shared_ptr<const void> hold() const {
    return std::make_shared<const std::pair<std::shared_ptr<SharedArena>, std::shared_ptr<void>>>(
        arena_, claim_);
  }
  // Writable.
  [[nodiscard]] std::span<std::byte> data() const noexcept { return lease_.data(); }

 private:
  // In this order: the lease ends first, then the claim.
  std::shared_ptr<SharedArena> arena_;
  std::shared_ptr<void> claim_;
  WriteLease lease_;
};

}  // namespace wsync::publish
