// Weights in an arena, mapped as a sidecar maps those of a trainer: read-only, by a descriptor that
// was shared.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/shared_memory.h"

namespace wsync::bench {

struct StagedArenaOptions {
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;  // of the bytes
  HugePages huge_pages = HugePages::kOff;
};

// Thread: any for reading.
class StagedArena {
 public:
  // Errors as SharedArena::create() and ArenaView::open().
  [[nodiscard]] static Result<StagedArena> create(const StagedArenaOptions& options);

  [[nodiscard]] std::span<const std::byte> data() const noexcept { return view_.data(); }
  // All of the mapping, which is what a sidecar registers with its GPUs.
  [[nodiscard]] std::span<const std::byte> mapping() const noexcept {
    return view_.region()->bytes();
  }
  // Why the arena is not in huge pages of the pool although these were asked for; otherwise empty.
  [[nodiscard]] const std::string& fallback() const noexcept { return fallback_; }

 private:
  StagedArena(SharedArena arena, ArenaView view, std::string fallback)
      : arena_(std::move(arena)), view_(std::move(view)), fallback_(std::move(fallback)) {}
  SharedArena arena_;
  ArenaView view_;
  std::string fallback_;
};

// Fills `bytes` with values that depend on the position and the seed.
void fill_with_noise(std::span<std::byte> bytes, std::uint64_t seed);

}  // namespace wsync::bench
