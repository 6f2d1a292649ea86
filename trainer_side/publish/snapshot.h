// Snapshotter: copies the trainer's weights into a sealed arena, so that training may continue
// while the version is transferred. It alternates between several arenas (arena_pool.h).
//
// A complete arena is read-only in this process as well, bucket by bucket (shared_memory.h).
//
// Where little changes and nobody maps the arenas, the weights are only compared with the version
// in an arena, and the snapshot is held as what changes from that. exchange() then changes the
// arena in place, so that a trainer needs the memory of one version and of what changes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/sealed_memory.h"
#include "shared/base/shared_memory.h"
#include "shared/config/defaults.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/manifest.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/patch/version_changes.h"
#include "shared/weights/version.h"
#include "trainer_side/publish/arena_pool.h"
#include "trainer_side/publish/weight_source.h"
#include "trainer_side/publish/writable_arena.h"

namespace wsync::publish {

// Where the buckets and the leaves of a model lie in an arena.
struct ArenaLayout {
  std::shared_ptr<const BucketPlan> plan;
  std::shared_ptr<const LeafTable> leaves;
  std::shared_ptr<const patch::Layout> blocks;
};

// A version in an arena, or as what changes from another one. Its bytes do not change: the arena is
// not written while a pointer to this object, or a read lease in another process, exists. Thread:
// any.
class Snapshot {
 public:
  struct Times {
    std::chrono::nanoseconds wait{};   // for an arena without readers
    std::chrono::nanoseconds setup{};  // for the creation of an arena, until there are enough
    std::chrono::nanoseconds copy{};   // weights to arena, digests included
  };
  // The times at which the first byte of a bucket was read and its last byte was digested.
  struct BucketTime {
    TimePoint begin{};
    TimePoint end{};
  };
  // What is known of a version wherever its bytes are.
  struct Described {
    ArenaIdentity identity;
    std::shared_ptr<const Manifest> manifest;
    ArenaLayout layout;
    ContentDigests digests;
    Times times;
    std::vector<BucketTime> bucket_times;
    std::shared_ptr<const PartedVersion> parted = nullptr;
  };
  // The version is in this arena.
  Snapshot(Described described, std::shared_ptr<SharedArena> arena, ReadLease lease,
           std::shared_ptr<const SealedMemory> patch);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  // Who has read its bytes has ended before.
  ~Snapshot() { ended_.fetch_add(1, std::memory_order_release); }
  // It is held as what changes from `base`, which is complete.
  Snapshot(Described described, patch::VersionChanges changes,
           std::shared_ptr<const Snapshot> base);

  [[nodiscard]] Version version() const noexcept;
  [[nodiscard]] const ArenaIdentity& identity() const noexcept { return described_.identity; }
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const noexcept {
    return described_.manifest;
  }
  [[nodiscard]] const std::shared_ptr<const BucketPlan>& plan() const noexcept {
    return described_.layout.plan;
  }
  [[nodiscard]] const std::shared_ptr<const patch::Layout>& blocks() const noexcept {
    return described_.layout.blocks;
  }
  [[nodiscard]] const std::shared_ptr<const LeafTable>& leaves() const noexcept {
    return described_.layout.leaves;
  }
  [[nodiscard]] const ContentDigests& digests() const noexcept { return described_.digests; }
  [[nodiscard]] const Times& times() const noexcept { return described_.times; }
  // One for each bucket of the plan.
  [[nodiscard]] const std::vector<BucketTime>& bucket_times() const noexcept {
    return described_.bucket_times;
  }
  // Who has the rest of its bytes, if only those of part 0 are here; null: all are.
  [[nodiscard]] const std::shared_ptr<const PartedVersion>& parted() const noexcept {
    return described_.parted;
  }
  // Whether it has an arena.
  [[nodiscard]] bool is_complete() const noexcept { return arena_ != nullptr; }
  // Empty unless it is complete.
  [[nodiscard]] std::span<const std::byte> data() const noexcept {
    return arena_ ? std::as_const(*arena_).data() : std::span<const std::byte>();
  }
  // std::nullopt if it is complete.
  [[nodiscard]] const std::optional<patch::VersionChanges>& changes() const noexcept {
    return changes_;
  }
  // What changes from the snapshot that was its base (SnapshotRequest::base); null if none was
  // made.
  [[nodiscard]] const std::shared_ptr<const SealedMemory>& patch() const noexcept { return patch_; }
  // A new read-only descriptor of the arena without any lock, for a sidecar on this host. kNotFound
  // unless it is complete.
  [[nodiscard]] Result<UniqueFd> share() const;

 private:
  friend class Snapshotter;
  std::shared_ptr<SharedArena> arena_;
  std::optional<ReadLease> lease_;
  Described described_;
  std::shared_ptr<const SealedMemory> patch_;
  std::optional<patch::VersionChanges> changes_;
  std::shared_ptr<const Snapshot> base_;  // of changes_
  // Snapshots that have ended. The lock of the kernel orders their readers before a writer of the
  // arena. This orders them in the memory model of C++ as well, which knows nothing of such locks.
  static inline std::atomic<std::uint64_t> ended_ = 0;
};

struct SnapshotterOptions {
  std::string name = "wsync-snapshot";  // of the arenas, as shown in /proc
  std::uint32_t arenas = 3;             // at most
  // Arenas that only other processes read, although this process needs their version no longer, do
  // not count: another one is created for each.
  bool additional_arenas = false;
  unsigned threads = 2;
  HugePages huge_pages = HugePages::kOff;
  std::optional<std::uint32_t> numa_node = std::nullopt;  // of the arenas, if possible
  // Without numa_node, an arena is placed near the GPUs from which its first version comes.
  bool near_gpus = false;
};

// A snapshot whose copy begins.
struct CopiedSnapshot {
  ArenaIdentity identity;  // its content digest is zero
  std::shared_ptr<const Manifest> manifest;
  ArenaLayout layout;
  std::span<const std::byte> data;   // a bucket may be read when it is complete
  std::shared_ptr<const void> hold;  // keeps `data` mapped, and from being written by others
};

// For sentences.
[[nodiscard]] std::string snapshot_name(const Version& version);

struct SnapshotRequest {
  std::uint64_t fence_epoch = 0;
  std::array<std::uint64_t, 2> fence_run_id{};
  Version version;  // epoch 0: not named yet, see rename()
  std::uint64_t bucket_bytes = config::kBucketBytesDefault;
  TimePoint deadline{};  // for a free arena
  // The longest wait for a free arena, if it ends before the deadline.
  std::optional<std::chrono::nanoseconds> arena_wait = std::nullopt;
  // Called once, on the thread of take(), if no arena is free at once.
  std::function<void()> on_wait = nullptr;
  // Called once, on the thread of take(), when the copy begins, or the sums if the bytes are in an
  // arena already. It is not called if their sums are known as well.
  std::function<void(const CopiedSnapshot&)> on_copy = nullptr;
  // Called when a bucket is complete, with the sums of its leaves, on the thread that has
  // written its last byte. Several threads may call it at the same time, each for another bucket.
  // All calls return before take().
  std::function<void(std::uint64_t bucket, const std::vector<WordSum>& sums)> on_bucket = nullptr;
  // A patch from this snapshot is made as well, if it is worth it, both have the same layout, and
  // somebody else still needs it when there is an arena for the new one: its own may be that arena.
  std::weak_ptr<const Snapshot> base;
  std::uint64_t value_cost = 0;  // of the ranks that will write the patch (patch/worth.h)
  // Nothing is copied if the source is in host memory and few bytes differ from `base`: the
  // snapshot is then held as these changes. There is no on_copy, no on_bucket and no patch.
  bool as_changes = false;
  // NUMA node of an arena that is created for it, unless the options set one.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  std::optional<TimePoint> copy_deadline;  // for the copy; none = no limit
  std::stop_token stop;                    // ends it with kCancelled
  // Counts while copying, and before that while the memory of a new arena is touched; may be null.
  std::atomic<std::uint64_t>* done_bytes = nullptr;
  std::atomic<std::uint64_t>* total_bytes = nullptr;  // set before either; may be null
};

// Whether it is worth while to compare. A source that cannot show its bytes has to be read to see
// that too much has changed, and then it is read again. So after two such snapshots the next one is
// copied at once, after another one the next two, and so on, up to eight. Thread: any.
class ChangesBackoff {
 public:
  // Whether the next snapshot may be compared.
  [[nodiscard]] bool may_compare();
  void note_too_much();
  void note_little();

 private:
  static constexpr std::uint32_t kSkippedMax = 8;
  std::mutex mutex_;
  std::uint32_t to_skip_ = 0;
  std::uint32_t next_skip_ = 0;
};

// Thread: any, concurrently. Everything but rename() and arena_bytes() may block for long, because
// it may create or free an arena. Snapshots may be released on any thread.
class Snapshotter {
 public:
  explicit Snapshotter(SnapshotterOptions options);

  // Creates `count` arenas for this model now, so that the first versions do not wait for memory
  // allocation.
  [[nodiscard]] Result<> reserve(const Manifest& manifest, std::uint64_t bucket_bytes,
                                 std::uint32_t count);

  // Returns an arena for a model that its caller writes, in place of a copy by take(). It is
  // writable. Of the request only bucket_bytes, deadline, arena_wait, on_wait, stop and the
  // counters count. Errors as take().
  [[nodiscard]] Result<WritableArena> begin(const Manifest& manifest,
                                            const SnapshotRequest& request);

  // Makes an arena that nobody reads writable again, if there is one, so that the next take() need
  // not: this takes about 25 ms per GiB. Call it when nothing waits.
  void prepare_next() { arenas_.prepare_next(); }

  // Frees the arenas that nobody reads and that hold no snapshot in use; take() creates them again.
  void release_unused() { arenas_.release_unused(); }

  // Copies every tensor of the source into an arena and digests it at the same time. When it
  // returns, the weights may change. A source whose bytes are in an arena already is only digested.
  // Errors: kBusy if no arena is free in time, with the readers of
  // each arena;
  // kResourceExhausted if there is no memory for an arena; kDeadline if the copy is not complete at
  // its deadline, returned after the current read of the source; kCancelled if it was stopped;
  // otherwise the error of the source.
  [[nodiscard]] Result<std::shared_ptr<Snapshot>> take(WeightSource& source,
                                                       const SnapshotRequest& request);

  // The complete snapshot of this version that was taken last and is still in use; null if there is
  // none.
  [[nodiscard]] std::shared_ptr<const Snapshot> find(const Version& version) const;

  // The end of exchange().
  struct Exchanged {
    std::shared_ptr<const Snapshot> newer;
    std::shared_ptr<const Snapshot> older;  // its base
    std::uint64_t bytes = 0;                // of the changes
    std::optional<Error> failure;           // both are as they were
  };
  // Makes a snapshot complete that is held as its changes, in the arena of its base, which is held
  // as its changes from then on. The caller gives up all its pointers to both. They stay as they
  // were if somebody reads the arena until `deadline` (kBusy), or if it cannot be written.
  // kDigestMismatch if the arena or the changes are damaged; both versions are lost then.
  [[nodiscard]] Result<Exchanged> exchange(std::shared_ptr<const Snapshot> newer,
                                           TimePoint deadline);
  // The same in another arena; the base stays as it is. Errors as begin(), and kDigestMismatch.
  [[nodiscard]] Result<std::shared_ptr<Snapshot>> complete_beside(const Snapshot& newer);

  // Gives the snapshot the name under which it is published. It must not have been shared yet.
  // Thread: any, also during take().
  void rename(Snapshot& snapshot, std::uint64_t fence_epoch,
              const std::array<std::uint64_t, 2>& fence_run_id, const Version& version);
  // Total size of all arenas. Thread: any.
  [[nodiscard]] std::uint64_t arena_bytes() const noexcept { return arenas_.bytes(); }

 private:
  [[nodiscard]] Result<ArenaLayout> layout_of(const Manifest& manifest, std::uint64_t bucket_bytes);
  [[nodiscard]] static ArenaOrder order_of(const ArenaLayout& layout, const ArenaIdentity& identity,
                                           const SnapshotRequest& request);
  // The complete snapshot that has been written to this arena, which is claimed.
  [[nodiscard]] Result<std::shared_ptr<Snapshot>> complete(
      Snapshot::Described described, WritableArena& arena,
      std::shared_ptr<const SealedMemory> patch);
  // The snapshot as its changes, or null if it has to be copied (snapshot_changes.cc).
  [[nodiscard]] Result<std::shared_ptr<Snapshot>> take_changes(WeightSource& source,
                                                               const SnapshotRequest& request,
                                                               const ArenaLayout& layout,
                                                               const ArenaIdentity& identity);
  // The write lease of a claimed arena. kBusy if it has readers at the deadline.
  [[nodiscard]] Result<WriteLease> wait_for_readers(SharedArena& memory,
                                                    const ArenaIdentity& identity,
                                                    TimePoint deadline) const;

  const SnapshotterOptions options_;
  std::mutex layout_mutex_;  // guards the next two
  ArenaLayout layout_;       // the last one
  Digest layout_digest_;
  ChangesBackoff backoff_;
  ArenaPool arenas_;
};

}  // namespace wsync::publish
