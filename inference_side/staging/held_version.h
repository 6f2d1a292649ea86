// HeldVersion: a version that a sidecar holds, with its digests and its memory.
//
// Thread: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <variant>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/manifest.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/version.h"

namespace wsync::staging {

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
  // The blocks of its leaves. Only begin_changes() needs them.
  std::shared_ptr<const patch::Layout> blocks = nullptr;
  // How it travels, if it has several parts: cut between them as well. whole_leaves() makes the
  // leaves of `leaves` of these. Null: as the plan.
  std::shared_ptr<const BucketPlan> transfer = nullptr;
  std::shared_ptr<const LeafTable> transfer_leaves = nullptr;
  [[nodiscard]] const BucketPlan& transfer_plan() const { return transfer ? *transfer : *plan; }
  [[nodiscard]] const LeafTable& arriving_leaves() const {
    return transfer_leaves ? *transfer_leaves : *leaves;
  }
};

// The version that an identity names.
[[nodiscard]] Version version_of(const ArenaIdentity& identity);

// Its memory is elsewhere: what changes from another version is held of it
// (shared/weights/patch/version_changes.h).
struct NoMemory {};

// A version. Immutable: its memory does not change while a pointer to it exists. Its sums have been
// compared with the announced content digest, its bytes as is_verified() says.
class HeldVersion {
 public:
  using Memory = std::variant<ArenaView, std::shared_ptr<OwnArena>, NoMemory>;
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
  // False: only what changes from another version is here, so that it has no bytes. data() is empty
  // then, and mapping() must not be called.
  [[nodiscard]] bool is_complete() const noexcept { return memory_.index() != 2; }
  // The same version in this memory, which is none or has its bytes. `unmapper`: as in make().
  [[nodiscard]] std::shared_ptr<const HeldVersion> with_memory(
      Memory memory, const std::shared_ptr<ThreadPool>& unmapper = nullptr) const;
  // Size of its arena, whether its bytes are here or not.
  [[nodiscard]] std::uint64_t arena_bytes() const noexcept { return plan_->arena_bytes(); }
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return data_; }
  // Keeps the memory mapped and prevents the reuse of an own arena; null if it has none. It keeps
  // no lease: the arena of another process may be written again when the version is released.
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
  // A new read-only descriptor of the arena without any lock, for an engine. kNotFound if its bytes
  // are not here.
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

}  // namespace wsync::staging
