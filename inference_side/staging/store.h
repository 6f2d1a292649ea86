// Store: the versions that a sidecar holds in host memory, and the one that is arriving.
//
// A version's memory is either an arena of a trainer on this host (mapped, nothing copied) or an
// arena of the store's own, which is touched when it is made and used again for later versions.
// Every byte is verified while it arrives (Verifier), by threads of low priority. Memory is made
// and let go by a thread of its own, for that takes seconds for a few GiB.
//
// Thread: the owner's loop thread calls everything; callbacks come on it through Post.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "inference_side/staging/verifier.h"
#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/version.h"

namespace wsync::staging {

struct StoreOptions {
  std::string name = "wsync-staging";  // of own arenas, as /proc shows them
  std::uint64_t memory_bytes = 0;      // for all versions together, mapped ones too; 0 = no limit
  bool huge_pages = false;
  std::optional<std::uint32_t> numa_node = std::nullopt;  // of own arenas, where it can be had
  unsigned verify_threads = 2;
  int verify_nice = 10;
};

// An arena of the store's own, with the lease that it holds at the moment.
struct OwnArena {
  SharedArena arena;
  std::variant<std::monostate, WriteLease, ReadLease> lease;
};

// A version that shall arrive.
struct StagingJob {
  ArenaIdentity identity;  // fence, version, layout, content as announced, bucket_bytes
  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const BucketPlan> plan;
  // See VerifierJob.
  std::function<void(std::uint64_t bucket, std::span<const std::byte> bytes)> also;
  std::function<void(std::uint64_t bucket, TimePoint begin, TimePoint end)> digested = {};
};

// A complete, verified version. Immutable; its memory stays as it is while anyone has a pointer.
class HeldVersion {
 public:
  using Memory = std::variant<ArenaView, std::shared_ptr<OwnArena>>;
  // `unmapper` may be null. Otherwise a thread of it unmaps another process's arena when the last
  // pointer has gone; the lease ends with the pointer, in the thread that lets it go.
  static std::shared_ptr<const HeldVersion> make(const StagingJob& job, ContentDigests digests,
                                                 Memory memory,
                                                 const std::shared_ptr<ThreadPool>& unmapper);

  [[nodiscard]] Version version() const noexcept;
  [[nodiscard]] const ArenaIdentity& identity() const noexcept { return identity_; }
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const noexcept {
    return manifest_;
  }
  [[nodiscard]] const std::shared_ptr<const BucketPlan>& plan() const noexcept { return plan_; }
  // Content digests, of each tensor and of the whole, computed over the bytes held here.
  [[nodiscard]] const ContentDigests& digests() const noexcept { return digests_; }
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return data_; }
  // Keeps an own arena from being used again; null for another process's.
  [[nodiscard]] std::shared_ptr<const void> hold() const {
    return is_mapped() ? nullptr : std::get<std::shared_ptr<OwnArena>>(memory_);
  }
  // Whether the memory is another process's arena.
  [[nodiscard]] bool is_mapped() const noexcept { return memory_.index() == 0; }
  // A new read-only descriptor of the arena without any lock, for an engine.
  [[nodiscard]] Result<UniqueFd> share() const;

 private:
  HeldVersion(const StagingJob& job, ContentDigests digests, Memory memory);
  ArenaIdentity identity_;
  std::shared_ptr<const Manifest> manifest_;
  std::shared_ptr<const BucketPlan> plan_;
  ContentDigests digests_;
  Memory memory_;
  std::span<const std::byte> data_;
};

// Where the buckets of a version go.
struct Destination {
  std::span<std::byte> data;
  std::shared_ptr<const void> hold;  // keeps the memory, also after an abort
};

class Store {
 public:
  using OnStaged = std::function<void(Result<std::shared_ptr<const HeldVersion>>)>;
  using OnMemory = std::function<void(Result<Destination>)>;
  Store(StoreOptions options, Post post);
  ~Store();

  // kResourceExhausted, naming the bytes needed, unless `versions` of that size fit memory_bytes.
  // What the machine has is asked when an own arena is made: mapped arenas take none of it.
  [[nodiscard]] Result<> check_budget(std::uint64_t arena_bytes, std::uint64_t versions) const;

  // Begins to stage a version that arrives as a mapped arena. kBusy while another is arriving;
  // kRefused when the version is held already; kResourceExhausted when it does not fit beside the
  // versions held: release one first.
  [[nodiscard]] Result<> begin(StagingJob job, OnStaged on_staged);
  // The same for a version that arrives bucket by bucket, into an own arena that no engine uses.
  // `on_memory` comes with it, never inside this call; or with kResourceExhausted, when one has to
  // be made and host_memory or the machine has no room: then nothing is arriving any more. Neither
  // callback comes after abort(), which also ends the making.
  [[nodiscard]] Result<> begin_own(StagingJob job, OnMemory on_memory, OnStaged on_staged);
  // What the transport reports of the version that is arriving; without one it is ignored.
  void bucket_arrived(std::uint64_t bucket);
  void all_arrived();                 // own arena: on_staged comes when all is verified
  void view_arrived(ArenaView view);  // mapped arena: likewise
  // Drops the version that is arriving; on_staged does not come. The transport has been told first.
  void abort();

  [[nodiscard]] std::optional<Version> arriving() const;
  // Whether the version that is arriving waits for its own arena.
  [[nodiscard]] bool makes_memory() const { return arriving_ && arriving_->on_memory; }
  [[nodiscard]] std::uint64_t verified_bytes() const;  // of the version that is arriving
  [[nodiscard]] std::vector<Version> versions_held() const;
  [[nodiscard]] std::shared_ptr<const HeldVersion> find(Version version) const;
  // Bytes of everything that is held, is arriving or is kept to be used again.
  [[nodiscard]] std::uint64_t bytes() const;
  // Computes the content digest of a version that is held anew. `on_checked`: success when it is
  // what it was; kDigestMismatch. Not called when the version is released first. kNotFound when it
  // is not held, kBusy while it is being checked.
  [[nodiscard]] Result<> recheck(Version version, std::function<void(Result<>)> on_checked);
  // Lets a version go. Its memory is free when the last pointer to it has gone; an own arena is
  // kept for the next version.
  void release(Version version);
  // Own arenas that are made from now on. Mapped ones are where their trainer put them.
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
    std::shared_ptr<Verifier> verifier = {};  // last: it stops reading before its memory goes
  };
  struct Making;
  struct Recheck {
    std::shared_ptr<const void> hold;    // what it reads
    std::shared_ptr<Verifier> verifier;  // last, likewise
  };
  [[nodiscard]] Result<> may_begin(const StagingJob& job) const;
  void on_loop(std::function<void()> work, std::uint64_t generation);
  void find_own_arena();
  void make_own_arena(std::uint64_t arena_bytes);
  void own_arena_made(Making& making, std::uint64_t generation);
  [[nodiscard]] bool take_own_arena(const std::shared_ptr<OwnArena>& own);
  void no_memory(const Error& why);
  void not_placed(const Error& why);
  void drop_unused_arenas(std::uint64_t except_bytes);
  template <class T>
  void let_go(T what);
  [[nodiscard]] std::shared_ptr<Verifier> make_verifier(VerifierJob job,
                                                        Verifier::OnFinished on_finished);
  void verify_all(const std::shared_ptr<Verifier>& verifier, std::uint64_t buckets);
  void start_verifier(std::span<const std::byte> data);
  void finish(Result<ContentDigests> verdict);

  StoreOptions options_;
  bool said_not_placed_ = false;
  const Post post_;
  // A verifier's threads have low priority: beside busy processes one that is interrupted while it
  // has a lock keeps the lock for long. So they share none with the loop: it tells them by the
  // thread for memory, and they tell it by this one.
  std::unique_ptr<ThreadPool> teller_;
  std::shared_ptr<ThreadPool> pool_;
  // One thread, so that what was let go before is free when memory is made. Of normal priority: the
  // process cannot map anything while it is interrupted in the middle of that.
  std::shared_ptr<ThreadPool> memory_;
  std::shared_ptr<bool> alive_;
  std::map<Version, std::shared_ptr<const HeldVersion>> held_;
  std::map<Version, Recheck> rechecks_;
  std::vector<std::shared_ptr<OwnArena>> own_;  // used by a version or free
  std::uint64_t generation_ = 0;                // of arriving versions
  std::optional<Arriving> arriving_;
};

}  // namespace wsync::staging
