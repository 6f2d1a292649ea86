// The floor of an update, in an engine's process: it copies the served bytes once more from the
// mapped arena of their version to the same memory. It uses the best streaming copy, and no
// checksums, messages or state.
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

// A way to copy the floor.
struct FloorWay {
  CopyKind kind = CopyKind::kPortable;
  unsigned threads = 1;
  bool verified = false;  // computes the checksum in the same pass, as engines do
  friend bool operator==(const FloorWay&, const FloorWay&) = default;
};

// The ways to time on this machine: every vector copy, on one thread and on all cores.
[[nodiscard]] std::vector<FloorWay> floor_ways(unsigned cores);

// A copy in pieces, by several threads of this process. Thread: one.
class PieceCopy {
 public:
  struct Piece {
    std::span<std::byte> to;
    std::span<const std::byte> from;
  };
  struct Times {
    TimePoint begin{};
    TimePoint end{};
  };
  // Adds a copy of equally many bytes, in pieces of a size that threads share well.
  void add(std::span<std::byte> to, std::span<const std::byte> from);
  [[nodiscard]] Times copy(const FloorWay& way);
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::vector<Piece> pieces_;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<ThreadPool> helpers_;
  std::atomic<std::uint64_t> seen_ = 0;  // of the sums, which the compiler must not leave out
};

// Thread: one.
class FloorCopy {
 public:
  // Finds the arena of `version` among the descriptors of this process, which the engine link
  // holds, and maps and touches it again. The engine keeps `model`, and neither the link nor the
  // sidecar is involved. kNotFound if no arena of that version is held.
  [[nodiscard]] static Result<std::unique_ptr<FloorCopy>> map(
      const Manifest& manifest, const engine::reference::HeldModel& model, const Version& version);

  // Reads the arena once, as staging does before an update, so that the caches are in the same
  // state for both copies.
  void read() const;
  // Copies every byte of the model. The content of the memory does not change.
  [[nodiscard]] PieceCopy::Times copy(const FloorWay& way) { return copy_.copy(way); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return copy_.bytes(); }

 private:
  explicit FloorCopy(ArenaView arena) : arena_(std::move(arena)) {}

  ArenaView arena_;
  PieceCopy copy_;  // in the order of the arena
  // result of read(), which keeps the compiler from removing the reads
  mutable std::atomic<std::uint64_t> seen_ = 0;
};

}  // namespace wsync::bench
