// ArenaCopy: a load out of a mapped arena, by several threads. Runs of chunks are taken in
// the plan's order, each by whoever is free; what is complete is told in order, on the thread that
// asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inference_side/reload/load_plan.h"
#include "shared/base/clock.h"
#include "shared/base/thread_pool.h"

namespace wsync::engine {

// Thread: one; used once.
class ArenaCopy {
 public:
  // All borrowed. `destinations`: the rank's whole tensors, in the order of the plan's.
  ArenaCopy(const reload::LoadPlan& plan, std::span<const std::byte> arena,
            std::vector<std::span<std::byte>> destinations);

  // Group `index` has been copied; its checksum. An error ends the copy.
  using OnGroup = std::function<Result<>(std::size_t index, std::uint64_t checksum)>;
  // Copies everything, with the threads of `helpers` (may be null) and the calling one. When it
  // returns, also with an error, nobody writes any more. kDeadline when the time is up, else the
  // first error of `on_group`.
  [[nodiscard]] Result<> run(ThreadPool* helpers, TimePoint deadline, const OnGroup& on_group);

 private:
  struct Chunk {
    std::uint32_t group = 0;
    std::uint32_t index = 0;  // in its group
  };
  void copy_chunk(std::size_t at, reload::CopyScratch& scratch);
  // The next chunks, copied; false when none is left or the copy was ended.
  [[nodiscard]] bool copy_run(reload::CopyScratch& scratch);
  [[nodiscard]] Result<> tell_complete(const OnGroup& on_group);

  const reload::LoadPlan& plan_;
  std::span<const std::byte> arena_;
  std::vector<std::span<std::byte>> destinations_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint64_t> sums_;       // of each chunk, valid once it is done
  std::vector<std::atomic<bool>> done_;   // of each chunk
  std::vector<std::size_t> first_chunk_;  // of each group, and the end
  std::atomic<std::size_t> next_chunk_ = 0;
  std::atomic<bool> ended_ = false;
  std::size_t next_group_ = 0;   // not told yet
  std::size_t done_chunks_ = 0;  // a prefix of the chunks that is done
};

}  // namespace wsync::engine
