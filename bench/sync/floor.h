// The floor of an update, in an engine's process: the bytes that it serves, copied once more from
// the mapped arena they came in to the same memory, by the best streaming copy and nothing else: no
// checksum, no message, no state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inference_side/reference_engine/held_model.h"
#include "shared/base/clock.h"
#include "shared/base/shared_memory.h"
#include "shared/base/stream_copy.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/manifest.h"
#include "shared/weights/version.h"

namespace wsync::bench {

// How the floor is copied.
struct FloorWay {
  CopyKind kind = CopyKind::kPortable;
  unsigned threads = 1;
  bool verified = false;  // with the checksum of what is copied in the same pass, as engines copy
  friend bool operator==(const FloorWay&, const FloorWay&) = default;
};

// Those that are worth timing on this machine: every vector copy on one thread, and on each core.
[[nodiscard]] std::vector<FloorWay> floor_ways(unsigned cores);

// Thread: one.
class FloorCopy {
 public:
  // Finds the arena of `version` among this process's own descriptors, where the engine link holds
  // it, and maps and touches it once more. The engine keeps `model`, and neither the link nor the
  // sidecar knows of it. kNotFound when no arena of that version is held.
  [[nodiscard]] static Result<std::unique_ptr<FloorCopy>> map(
      const Manifest& manifest, const engine::reference::HeldModel& model, const Version& version);

  // Reads the arena through once, as staging does before an update: so that both copies find the
  // caches alike.
  void read() const;
  struct Times {
    TimePoint begin{};
    TimePoint end{};
  };
  // Copies every byte of the model. The memory holds the same bytes afterwards.
  [[nodiscard]] Times copy(const FloorWay& way);
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Piece {
    std::span<std::byte> to;
    std::span<const std::byte> from;
  };
  explicit FloorCopy(ArenaView arena) : arena_(std::move(arena)) {}

  ArenaView arena_;
  std::vector<Piece> pieces_;  // in the arena's order
  std::uint64_t bytes_ = 0;
  std::unique_ptr<ThreadPool> helpers_;
  mutable std::atomic<std::uint64_t> seen_ = 0;  // keeps what was read from being optimised away
};

}  // namespace wsync::bench
