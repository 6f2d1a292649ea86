// Store: the versions that a sidecar holds in host memory, and the one that is being staged.
//
// The memory of a version is either an arena of a trainer on this host, which is mapped without
// copying, or an arena of the store, which is touched when it is created and reused for later
// versions. A separate thread allocates and frees memory, because that takes seconds for a few GiB.
//
// A version may also arrive as what changes from another one, and be held so, without memory of its
// own. complete() makes it the one in the arena of the other, of which what leads back is held from
// then on. So a sidecar needs little more than the memory of one version. It changes an own arena
// itself. It lends a mapped one to its trainer, which changes it and gives it back.
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
#include <vector>

#include "inference_side/staging/held_version.h"
#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/shared_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/manifest.h"
#include "shared/weights/patch/version_changes.h"
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

// Where the buckets of a version are written.
struct Destination {
  std::span<std::byte> data;
  std::shared_ptr<const void> hold;  // keeps the memory alive, also after an abort
};

// This class has more than 25 methods: the arriving version, held versions and free memory are kept
// within one budget.
class Store {
 public:
  // The end of complete().
  struct Completed {
    Result<std::shared_ptr<const HeldVersion>> held;
    bool in_place = false;   // it is where its base was
    bool base_lost = false;  // it failed, and the memory of its base holds no version any more
  };
  using OnCompleted = std::function<void(Completed completed)>;
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
  // The same for a version that arrives as what changes from `base`, which is held complete. It
  // needs no memory but that of the changes. kRefused if `base` is not so held.
  [[nodiscard]] Result<> begin_changes(StagingJob job, Version base, OnStaged on_staged);
  // Reports of the transport about the version that is being staged; ignored when there is none.
  // `sums`: of the leaves of the bucket, of the bytes that are in the arena now.
  void bucket_arrived(std::uint64_t bucket, std::span<const WordSum> sums);
  // `sums`: of the leaves that the changes lead to, compared with the base.
  void changes_arrived(std::uint64_t bucket, std::span<const WordSum> sums,
                       std::shared_ptr<const Bytes> changes);
  void all_arrived();                 // own arena: on_staged comes when the sums are compared
  void view_arrived(ArenaView view);  // mapped arena: likewise
  // The content digest of the version that is being staged. Does nothing if it is known already, or
  // if no version is being staged.
  void expect_content(const Digest& content);
  // Makes a version complete of which only what changes from another one is here. In place: in the
  // arena of that one, of which what leads back is held from then on. Otherwise in another own
  // arena, as begin_own(). kBusy, with nothing begun, if it shall be in place and somebody uses the
  // arena: try again, or not in place. kNotFound if there are no such changes. One at a time; the
  // caller releases neither version before `done`, which is never called inside the call.
  //
  // If the other one is in a mapped arena, `fetch` is called, never inside the call: the caller
  // maps the version from the trainer, which writes it to that arena or to another one, and answers
  // with arena_given(). If the trainer does not give it, an own arena is taken; so it is if the
  // trainer has ended while it wrote. `fetch` is called again while the trainer is still writing.
  [[nodiscard]] Result<> complete(Version version, bool in_place, std::function<void()> fetch,
                                  OnCompleted done);
  // Ignored if no version is fetched for complete(). `is_last`: with an error, the trainer is not
  // asked again. If it stands still while it writes, both versions are lost then
  // (Completed::base_lost).
  void arena_given(Result<ArenaView> view, bool is_last = false);
  // Drops the version being staged; on_staged is not called. The transport must be stopped before.
  void abort();

  [[nodiscard]] std::optional<Version> arriving() const;
  // Whether the version being staged waits for its own arena.
  [[nodiscard]] bool makes_memory() const { return arriving_ && arriving_->on_memory; }
  [[nodiscard]] std::uint64_t arrived_bytes() const;  // of the version that is being staged
  [[nodiscard]] std::vector<Version> versions_held() const;
  // A version that is held, complete or not.
  [[nodiscard]] std::shared_ptr<const HeldVersion> find(Version version) const;
  // What is held of a version that is not complete; null if it is, or is not held.
  [[nodiscard]] const patch::VersionChanges* changes_of(Version version) const;
  // Whether versions come as copies into arenas of the store.
  [[nodiscard]] bool has_own_arenas() const noexcept { return !own_.empty(); }
  // Total size of all memory that is held, is being filled, or is kept for reuse, with patches.
  [[nodiscard]] std::uint64_t bytes() const;
  // How much may be held beside it: of memory_bytes, and of the machine's memory.
  [[nodiscard]] std::uint64_t room() const;
  // The size of all patches that are held, which counts as held by this store. `spare`: of those
  // among them that are given up if memory_bytes has no room for a version beside them.
  void count_patches(std::uint64_t bytes, std::uint64_t spare) {
    patch_bytes_ = bytes;
    spare_patch_bytes_ = spare;
  }
  // `give_up` drops the spare patches, and calls count_patches(). It is called inside calls of the
  // store and from its loop, until the store is destroyed.
  void on_patches_given_up(std::function<void()> give_up) { give_up_patches_ = std::move(give_up); }
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
    bool is_verified = true;                            // once it is complete
    bool has_arrived = false;                           // every byte
    std::optional<patch::VersionChanges> changes = {};  // in place of memory
    std::vector<WordSum> sums = {};                     // own arena and changes: of its leaves
    std::vector<bool> arrived = {};                     // the same: by bucket
    std::uint64_t arrived_bytes = 0;                    // the same
  };
  struct Completing;
  // The result of an allocation on the memory thread.
  struct Making {
    Result<SharedArena> arena = fail(ErrorCode::kCancelled, "not made");
    std::optional<Error> fallback;
  };
  [[nodiscard]] Result<> may_begin(const StagingJob& job) const;
  // Whether memory_bytes allows it to hold so many bytes more. Spare patches are given up for it.
  [[nodiscard]] bool make_room(std::uint64_t more_bytes);
  void on_loop(std::function<void()> work, std::uint64_t generation);
  void find_own_arena();
  void make_own_arena(std::uint64_t arena_bytes);
  void own_arena_made(Making& making, std::uint64_t generation);
  // `on_made` is called on the loop.
  void make_arena(std::uint64_t arena_bytes, std::stop_token stop,
                  std::function<void(Making&)> on_made);
  [[nodiscard]] static bool is_free(OwnArena& own);
  [[nodiscard]] static bool lock_free_arena(const std::shared_ptr<OwnArena>& own,
                                            std::uint64_t arena_bytes,
                                            const ArenaIdentity& identity);
  [[nodiscard]] bool take_own_arena(const std::shared_ptr<OwnArena>& own);
  void expect_sums();
  [[nodiscard]] Result<> take_base_arena(Completing& completing);
  // `was_made`: an arena was made for it.
  void find_other_arena(const std::shared_ptr<Completing>& completing, bool was_made);
  void change(const std::shared_ptr<Completing>& completing);
  void completed(Completing& completing);
  // Of versions whose base is in a mapped arena.
  [[nodiscard]] Result<> begin_fetch(const std::shared_ptr<Completing>& completing);
  void fetch(const std::shared_ptr<Completing>& completing);
  void check_given(const std::shared_ptr<Completing>& completing, ArenaView view);
  void take_given(Completing& completing, ArenaView view);
  void not_given(const std::shared_ptr<Completing>& completing, bool is_last);
  // Gives its base its memory again, if it still has it.
  [[nodiscard]] bool take_back(Completing& completing);
  void copy_beside(const std::shared_ptr<Completing>& completing);
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
  std::uint64_t spare_patch_bytes_ = 0;
  std::function<void()> give_up_patches_ = [] {};
  std::uint64_t completing_bytes_ = 0;  // of an arena that is being made for complete(), or is lent
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
  std::map<Version, patch::VersionChanges> changes_;  // of versions that are not complete
  std::shared_ptr<Completing> fetching_;              // which waits for arena_given()
  // Read held copies again, and make versions complete. Declared last, so that they end first.
  std::unique_ptr<ThreadPool> checker_;
  std::stop_source stop_changing_;
  std::unique_ptr<ThreadPool> changer_;
};

}  // namespace wsync::staging
