// ArenaCopy: copies a load out of a mapped arena with several threads. Each thread takes the next
// run of chunks in the order of the plan. Complete groups are reported in order, on the thread that
// called run().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inference_side/engine_link/destination.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/clock.h"
#include "shared/base/thread_pool.h"

namespace wsync::engine {

// Thread: confined to the thread that creates it. An object executes one copy.
class ArenaCopy {
 public:
  // All arguments are borrowed. `destinations`: the rank's part of each tensor, in the order of the
  // plan's tensors.
  ArenaCopy(const reload::LoadPlan& plan, std::span<const std::byte> arena,
            std::vector<Destination> destinations);

  // Called when group `index` has been copied, with its sum. An error ends the copy.
  using OnGroup = std::function<Result<>(std::size_t index, const SplitSum& sum)>;
  // Copies everything, with the calling thread and the threads of `helpers` (may be null). When it
  // returns, even with an error, no thread writes any more. Returns kDeadline if the deadline has
  // passed, otherwise the first error of `on_group`.
  [[nodiscard]] Result<> run(ThreadPool* helpers, TimePoint deadline, const OnGroup& on_group);

 private:
  struct Chunk {
    std::uint32_t group = 0;
    std::uint32_t index = 0;  // in its group
  };
  void copy_chunk(std::size_t at, reload::CopyScratch& scratch);
  // Copies the next run of chunks. Returns false if none remains or the copy has ended.
  [[nodiscard]] bool copy_run(reload::CopyScratch& scratch);
  [[nodiscard]] Result<> notify_complete(const OnGroup& on_group);

  const reload::LoadPlan& plan_;
  std::span<const std::byte> arena_;
  std::vector<Destination> destinations_;
  std::vector<Chunk> chunks_;
  std::vector<SplitSum> sums_;            // of each chunk, valid once it is done
  std::vector<std::atomic<bool>> done_;   // of each chunk
  std::vector<std::size_t> first_chunk_;  // by group, then the total
  std::atomic<std::size_t> next_chunk_ = 0;
  std::atomic<bool> ended_ = false;
  std::size_t next_group_ = 0;   // first group that was not reported
  std::size_t done_chunks_ = 0;  // length of the completed prefix of chunks
};

}  // namespace wsync::engine
