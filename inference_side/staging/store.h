// Store: the versions that a sidecar holds in host memory, and the one that is being staged.
//
// The memory of a version is either an arena of a trainer on this host, which is mapped without
// copying, or an arena of the store, which is touched when it is created and reused for later
// versions. A separate thread allocates and frees memory, because that takes seconds for a few GiB.
//
// The transport sums the bytes of a copy while they arrive. The bytes of a mapped arena are not
// read if its writer cannot change them any more: it has summed them while it wrote them. In both
// cases the sums must give the announced content digest, which may come after the bytes. Whoever
// copies the bytes compares them with these sums. Who uses the bytes of a mapped arena in place, or
// needs other sums, calls HeldVersion::verify().
//
// Thread: the owner's loop thread calls every function. Callbacks are called on it through Post.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/shared_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/manifest.h"
#include "shared/weights/version.h"

namespace wsync::staging {

struct StoreOptions {
  std::string name = "wsync-staging";      // of own arenas, as shown by /proc
  std::uint64_t memory_bytes = 0;          // of all versions, including mapped ones; 0 = no limit
  HugePages huge_pages = HugePages::kOff;  // of own arenas
  std::optional<std::uint32_t> numa_node = std::nullopt;  // of own arenas, if possible
  unsigned threads = 2;  // that touch memory, and that read bytes to verify them
  // Own arenas were freed: whoever has mapped them unmaps them. Called on the loop thread.
  std::function<void()> on_freed = [] {};
};

// An arena of the store, with its current lease.
struct OwnArena {
  SharedArena arena;
  std::variant<std::monostate, WriteLease, ReadLease> lease;
};

// A version to be staged.
struct StagingJob {
  // Fence, version, layout, content as announced, bucket_bytes. A content of zero follows by
  // expect_content(), and until then the version is not complete.
  ArenaIdentity identity;
  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const BucketPlan> plan;
  std::shared_ptr<const LeafTable> leaves;  // of this plan
};

// A complete version. Immutable: its memory does not change while a pointer to it exists. Its sums
// have been compared with the announced content digest, its bytes as is_verified() says.
class HeldVersion {
 public:
  using Memory = std::variant<ArenaView, std::shared_ptr<OwnArena>>;
  // `unmapper` may be null. Otherwise its thread unmaps the arena of another process when the last
  // pointer is released. The lease ends with the last pointer, in the thread that releases it.
  static std::shared_ptr<const HeldVersion> make(const StagingJob& job, ContentDigests digests,
                                                 Memory memory, bool is_verified,
                                                 const std::shared_ptr<ThreadPool>& unmapper);

  [[nodiscard]] Version version() const noexcept;
  [[nodiscard]] const ArenaIdentity& identity() const noexcept { return identity_; }
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const noexcept {
    return manifest_;
  }
  [[nodiscard]] const std::shared_ptr<const BucketPlan>& plan() const noexcept { return plan_; }
  // Content digests, of each tensor and of the whole.
  [[nodiscard]] const ContentDigests& digests() const noexcept { return digests_; }
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return data_; }
  // Keeps the memory mapped and prevents the reuse of an own arena. It keeps no lease: the arena of
  // another process may be written again when the version is released.
  [[nodiscard]] std::shared_ptr<const void> hold() const;
  [[nodiscard]] const std::shared_ptr<const LeafTable>& leaves() const noexcept { return leaves_; }
  // The mapping in which data() lies. Versions that are in the same memory one after the other have
  // the same mapping.
  [[nodiscard]] const MappedRegion& mapping() const noexcept;
  // Whether the memory is another process's arena.
  [[nodiscard]] bool is_mapped() const noexcept { return memory_.index() == 0; }
  // Whether every byte has been read and compared with digests(). Thread: any.
  [[nodiscard]] bool is_verified() const noexcept { return is_verified_; }
  // Reads every byte with so many threads, unless it has been done. Blocks. Thread: any.
  // kDigestMismatch names the first tensor that differs; kCancelled, soon, when `stop` is
  // requested.
  [[nodiscard]] Result<> verify(unsigned threads, const std::stop_token& stop = {}) const;
  // Compares sums of its leaves with digests(). kDigestMismatch as verify(); an error that is
  // given is returned.
  [[nodiscard]] Result<> compare(const Result<std::vector<WordSum>>& found) const;
  // Takes sums of all leaves that were read elsewhere, and counts as verified if they are those of
  // digests(). Thread: any. kDigestMismatch as verify().
  [[nodiscard]] Result<> prove(std::vector<WordSum> found) const;
  // A new read-only descriptor of the arena without any lock, for an engine.
  [[nodiscard]] Result<UniqueFd> share() const;

 private:
  HeldVersion(const StagingJob& job, ContentDigests digests, Memory memory, bool is_verified);
  ArenaIdentity identity_;
  std::shared_ptr<const Manifest> manifest_;
  std::shared_ptr<const BucketPlan> plan_;
  std::shared_ptr<const LeafTable> leaves_;
  ContentDigests digests_;
  Memory memory_;
  std::span<const std::byte> data_;
  mutable std::mutex verify_mutex_;
  mutable std::atomic<bool> is_verified_;
};

// Where the buckets of a version are written.
struct Destination {
  std::span<std::byte> data;
  std::shared_ptr<const void> hold;  // keeps the memory alive, also after an abort
};

// This class has more than 25 methods: the arriving version, held versions and free memory are kept
// within one budget.
class Store {
 public:
  using OnStaged = std::function<void(Result<std::shared_ptr<const HeldVersion>>)>;
  using OnMemory = std::function<void(Result<Destination>)>;
  Store(StoreOptions options, Post post);
  ~Store();

  // Returns kResourceExhausted, with the required bytes, unless `versions` of that size fit into
  // memory_bytes. The memory of the machine is checked only when an own arena is created, because
  // mapped arenas need none.
  [[nodiscard]] Result<> check_budget(std::uint64_t arena_bytes, std::uint64_t versions) const;

  // Whether a version of that size fits into memory_bytes beside all held versions and, if it comes
  // into an own arena, into the machine's memory.
  [[nodiscard]] bool fits_beside(std::uint64_t arena_bytes) const;

  // Begins to stage a version that arrives as a mapped arena. Returns kBusy while another version
  // is being staged; kRefused if the version is already held; kResourceExhausted if it does not fit
  // beside the held versions, one of which must then be released first.
  [[nodiscard]] Result<> begin(StagingJob job, OnStaged on_staged);
  // The same for a version that arrives bucket by bucket, into an own arena that no engine uses.
  // `on_memory` is called with the arena, never inside this call. It is called with
  // kResourceExhausted if an arena must be created and host_memory or the machine has no room;
  // staging has then ended. After abort(), which also stops the allocation, no callback is called.
  [[nodiscard]] Result<> begin_own(StagingJob job, OnMemory on_memory, OnStaged on_staged);
  // Reports of the transport about the version that is being staged; ignored when there is none.
  // `sums`: of the leaves of the bucket, of the bytes that are in the arena now.
  void bucket_arrived(std::uint64_t bucket, std::span<const WordSum> sums);
  void all_arrived();                 // own arena: on_staged comes when the sums are compared
  void view_arrived(ArenaView view);  // mapped arena: likewise
  // The content digest of the version that is being staged. Does nothing if it is known already, or
  // if no version is being staged.
  void expect_content(const Digest& content);
  // Drops the version being staged; on_staged is not called. The transport must be stopped before.
  void abort();

  [[nodiscard]] std::optional<Version> arriving() const;
  // Whether the version being staged waits for its own arena.
  [[nodiscard]] bool makes_memory() const { return arriving_ && arriving_->on_memory; }
  [[nodiscard]] std::uint64_t arrived_bytes() const;  // of the version that is being staged
  [[nodiscard]] std::vector<Version> versions_held() const;
  [[nodiscard]] std::shared_ptr<const HeldVersion> find(Version version) const;
  // Whether versions come as copies into arenas of the store.
  [[nodiscard]] bool has_own_arenas() const noexcept { return !own_.empty(); }
  // Total size of all memory that is held, is being filled, or is kept for reuse, with patches.
  [[nodiscard]] std::uint64_t bytes() const;
  // How much may be held beside it: of memory_bytes, and of the machine's memory.
  [[nodiscard]] std::uint64_t room() const;
  // The size of all patches that are held, which counts as held by this store.
  void count_patches(std::uint64_t bytes) { patch_bytes_ = bytes; }
  // Computes the content digest of a held version again. `on_checked` receives success if the
  // digest has not changed, otherwise kDigestMismatch. It is not called if the version is released
  // first. Returns kNotFound if the version is not held, kBusy while it is being checked.
  [[nodiscard]] Result<> recheck(Version version, std::function<void(Result<>)> on_checked);
  // Releases a version. Its memory is free when the last pointer to it is released. An own arena is
  // kept for the next version.
  void release(Version version);
  // Frees the own arenas that no version is in and no engine maps. Does nothing while a version is
  // being staged. Returns their size.
  std::uint64_t release_unused();
  // Sets the NUMA node of own arenas created from now on. Mapped arenas stay where their trainer
  // created them.
  void prefer_node(std::optional<std::uint32_t> node) { options_.numa_node = node; }

 private:
  struct Arriving {
    StagingJob job;
    OnStaged on_staged;
    OnMemory on_memory = {};         // until there is an own arena
    std::uint64_t bytes_beside = 0;  // of an arena that is not in own_
    std::stop_source making = {};
    std::shared_ptr<OwnArena> own = {};  // null: a mapped arena, or none yet
    std::optional<ArenaView> view = {};
    bool is_verified = true;          // once it is complete
    bool has_arrived = false;         // every byte
    std::vector<WordSum> sums = {};   // own arena: of its leaves
    std::vector<bool> arrived = {};   // own arena: by bucket
    std::uint64_t arrived_bytes = 0;  // own arena
  };
  struct Making;
  [[nodiscard]] Result<> may_begin(const StagingJob& job) const;
  void on_loop(std::function<void()> work, std::uint64_t generation);
  void find_own_arena();
  void make_own_arena(std::uint64_t arena_bytes);
  void own_arena_made(Making& making, std::uint64_t generation);
  [[nodiscard]] static bool is_free(OwnArena& own);
  [[nodiscard]] bool take_own_arena(const std::shared_ptr<OwnArena>& own);
  void no_memory(const Error& why);
  void say_fallback(const Error& why);
  void drop_unused_arenas(std::uint64_t except_bytes);
  void drop_spare_arenas();
  // Frees the own arenas from this one on.
  void free_arenas(std::vector<std::shared_ptr<OwnArena>>::iterator first);
  template <class T>
  void destroy_later(T what);
  // Once every byte has arrived and the content digest is known.
  void compare_sums();
  void finish(Result<ContentDigests> verdict);

  StoreOptions options_;
  std::uint64_t patch_bytes_ = 0;
  bool said_fallback_ = false;
  const Post post_;
  // One thread, so that memory released earlier is free when memory is allocated. It has normal
  // priority: if it were interrupted in a call that holds the kernel's lock on the address space,
  // the process could not map anything else.
  std::shared_ptr<ThreadPool> memory_;
  std::shared_ptr<bool> alive_;
  std::map<Version, std::shared_ptr<const HeldVersion>> held_;
  std::map<Version, std::stop_source> rechecks_;
  std::vector<std::shared_ptr<OwnArena>> own_;  // in use by a version, or free
  std::uint64_t generation_ = 0;                // of versions being staged
  std::optional<Arriving> arriving_;
  // Reads held copies again. Declared last, so that it ends first.
  std::unique_ptr<ThreadPool> checker_;
};

}  // namespace wsync::staging
