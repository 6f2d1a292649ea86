// LeafCopier: copies the pieces of a model into an arena, leaf by leaf, and sums each leaf in the
// same loop. Where it is asked to, it compares each block with an earlier version just before. A
// part of a bucket that is complete is protected at once, so that little is left to protect when
// the last bytes are there.
//
// Without an arena it only compares and sums.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/word_sum.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/patch/block_maker.h"
#include "trainer_side/publish/change_finder.h"
#include "trainer_side/publish/snapshot.h"
#include "trainer_side/publish/weight_source.h"

namespace wsync::publish {

// Several threads of its own run it; no two of them process the same leaf. What it is given must
// outlive it.
class LeafCopier {
 public:
  // `arena`: writable; null: nothing is copied. Of the request, the callbacks, deadlines and
  // counters of the copy count. `changes`: compares what is copied; null: nothing does.
  LeafCopier(WeightSource& source, const ArenaLayout& layout, const WriteLease* arena,
             const SnapshotRequest& request, ChangeFinder* changes = nullptr);

  // Copies all leaves with this number of threads (at least 1), the calling one included. Called
  // once. Errors: kDeadline, kCancelled, otherwise the first error of the source. Without an arena
  // also kRefused, as soon as too much has changed.
  [[nodiscard]] Result<ContentDigests> run(unsigned threads);
  // After run(): of each bucket.
  [[nodiscard]] std::vector<Snapshot::BucketTime> bucket_times() const;

 private:
  // Leaves of one bucket whose bytes follow one another.
  struct Part {
    std::uint64_t bucket = 0;
    std::uint64_t begin = 0;  // in the arena's data
    std::uint64_t end = 0;
    std::atomic<std::size_t> leaves_left = 0;
  };
  struct Leaf {
    std::size_t piece = 0;
    std::uint64_t offset = 0;  // in the piece
    Part* part = nullptr;
  };
  struct BucketClock {
    std::atomic<std::int64_t> begin = std::numeric_limits<std::int64_t>::max();
    std::atomic<std::int64_t> end = 0;
    std::atomic<std::size_t> leaves_left = 0;
    void cover(TimePoint from, TimePoint to) {
      auto first = begin.load(std::memory_order_relaxed);
      while (static_cast<std::int64_t>(from) < first &&
             !begin.compare_exchange_weak(first, static_cast<std::int64_t>(from))) {
      }
      auto last = end.load(std::memory_order_relaxed);
      while (static_cast<std::int64_t>(to) > last &&
             !end.compare_exchange_weak(last, static_cast<std::int64_t>(to))) {
      }
    }
  };

  Part* part_of(const Piece& piece, std::uint64_t offset);
  std::pair<std::size_t, std::size_t> take_leaves();
  void copy_leaves();
  [[nodiscard]] Result<> may_continue() const;
  // What a thread keeps from leaf to leaf.
  struct Tools {
    std::optional<patch::BlockMaker> maker;  // none: nothing is compared
    Bytes scratch;                           // without an arena: of a leaf
  };
  [[nodiscard]] Result<> copy_leaf(std::size_t index, Tools& tools);
  [[nodiscard]] Result<WordSum> copy_bytes(std::uint32_t tensor, const SumPlace& place,
                                           std::span<std::byte> into, Tools& tools);
  // The same without an arena. `scratch` may be written.
  [[nodiscard]] Result<WordSum> compare_bytes(std::uint32_t tensor, const SumPlace& place,
                                              std::span<std::byte> scratch, Tools& tools);
  void protect(std::uint64_t begin, std::uint64_t bytes) const;
  void offer(std::uint64_t bucket) const;
  void end_with(Error error);

  WeightSource& source_;
  const BucketPlan& plan_;
  const LeafTable& table_;
  const WriteLease* arena_;  // null: none
  const SnapshotRequest& request_;
  ChangeFinder* changes_;
  std::deque<Part> parts_;
  std::vector<Leaf> leaves_;         // in the order of table_
  ContentDigester digester_;         // needs no lock: each leaf has its own entry
  std::vector<BucketClock> clocks_;  // of each bucket
  std::vector<WordSum> sums_;        // of each leaf
  unsigned threads_ = 1;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> is_over_ = false;
  std::mutex mutex_;
  std::optional<Error> failure_;  // under mutex_
};

}  // namespace wsync::publish
