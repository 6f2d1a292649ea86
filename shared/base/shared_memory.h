// Arenas: memfds that each hold one whole version of the weights. The processes of a host share
// them without a copy.
//
// File layout: one page with the header, then the data, then from the next page on the sums of the
// leaves of the data (shared/weights/content_digest.h), if the writer gives them. Pages are those
// of the arena: of 4 KiB, or huge. The file is sealed with SHRINK, GROW and FUTURE_WRITE. Its size
// therefore never changes (no SIGBUS), and only the creator's mapping can write.
//
// F_SEAL_FUTURE_WRITE does not bind the mapping of the creator. A writer that gives the sums
// therefore makes its own mapping of data and sums read-only while the content is complete. A stray
// write then ends the process that does it with SIGSEGV and reaches no reader, so that a reader may
// rely on the sums without reading the data again. A writer that changes a complete content to
// another one makes all of it writable for that time, and sums the words again that it changes. A
// stray write of this process to other words is not noticed then: who reads all bytes, as a full
// load and the scrub of engines do, finds that they are not those of the sums.
//
// Leases are open-file-description locks, which the kernel keeps. No message and no timeout
// releases a lease, and the kernel releases the lease of a killed process.
//   - The creator writes only under a WriteLease.
//   - Every reader reopens the descriptor read-only and takes a read lock *before* it verifies and
//     maps the arena (ArenaView). A reader in the creating process takes a ReadLease instead.
//   - A forked child shares the open file descriptions of its parent. If the parent only closed its
//     descriptor, the child would keep the lock, so every lease is unlocked explicitly when it
//     ends. Arenas are not mapped in the child.
// All lease calls are non-blocking. kBusy means that the other side holds the lease; the caller
// retries on a timer until its deadline.
//
// Thread: objects are not synchronised. Spans may be used from any thread while their owner lives.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/fork_guard.h"
#include "shared/base/kinds.h"
#include "shared/base/mapped_region.h"
#include "shared/base/unique_fd.h"
#include "shared/base/word_sum.h"

namespace wsync {

// The header of an arena, and where its data begins in the file unless its pages are huge.
inline constexpr std::uint64_t kArenaHeaderBytes = 4096;

// What the header of an arena says about its content.
struct ArenaIdentity {
  std::uint64_t fence_epoch = 0;
  std::array<std::uint64_t, 2> fence_run_id{};
  std::uint64_t version_epoch = 0;
  std::uint64_t version_step = 0;
  Digest layout;
  Digest content;  // zero until complete
  std::uint64_t bucket_bytes = 0;
  friend bool operator==(const ArenaIdentity&, const ArenaIdentity&) = default;
};

enum class ArenaState : std::uint32_t { kEmpty, kWriting, kComplete };

// A read lock on an arena, held by its own descriptor. Destruction releases it even if a forked
// child has a copy of that descriptor. Such a child never releases it.
class ReadLease {
 public:
  explicit ReadLease(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  ReadLease(ReadLease&&) noexcept = default;
  ReadLease& operator=(ReadLease&& other) noexcept {
    if (this != &other) {
      end();
      fd_ = std::move(other.fd_);
      home_ = other.home_;
    }
    return *this;
  }
  ~ReadLease() { end(); }
  void end() noexcept;
  // Releases the lock and keeps the descriptor, or takes the lock again. retake() returns kBusy
  // while the arena is being written.
  void pause() noexcept;
  [[nodiscard]] Result<> retake();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
  HomeProcess home_;
};

// Takes a read lease on the arena of `fd`, which is borrowed. Nothing is verified: its writer may
// have ended before it was complete. kBusy while the arena is being written.
[[nodiscard]] Result<ReadLease> lock_arena(int fd);

// The right to write an arena. It borrows the SharedArena, which must outlive it. If it is
// destroyed without complete(), the arena stays marked as unfinished, and no reader accepts it.
class WriteLease {
 public:
  WriteLease(WriteLease&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), file_(std::exchange(other.file_, {})) {}
  WriteLease& operator=(WriteLease&&) = delete;
  ~WriteLease();
  // Replaces the identity that try_write_lease() has set.
  void set_identity(const ArenaIdentity& identity) const noexcept;
  // Makes the data writable if it is protected. Call it before the first byte is written. It takes
  // about 25 ms per GiB. kIo if the system call fails.
  [[nodiscard]] Result<> unprotect() const;
  // The arena's data, writable after unprotect().
  [[nodiscard]] std::span<std::byte> data() const noexcept;
  // Makes the pages of the arena that lie completely inside these bytes of the data read-only in
  // this process.
  // Thread: several threads may protect and write different bytes at the same time. kIo if the
  // system call fails.
  [[nodiscard]] Result<> protect(std::uint64_t offset, std::uint64_t bytes) const;
  // Call this when all bytes are written. Writes the content digest and the final state, then
  // releases the lease.
  void complete(const Digest& content) &&;
  // The same, with the sums of the leaves in the order of their bytes; there are as many as
  // ArenaOptions::leaf_sums. Protects data and sums first. If that fails, readers are told that the
  // content is not protected.
  void complete(const Digest& content, std::span<const WordSum> leaves) &&;

 private:
  friend class SharedArena;
  WriteLease(int fd, std::span<std::byte> file) noexcept : fd_(fd), file_(file) {}
  void unlock() noexcept;
  int fd_ = -1;  // borrowed
  std::span<std::byte> file_;
};

struct ArenaOptions {
  std::string name;              // shown in /proc/PID/maps
  std::uint64_t data_bytes = 0;  // without the header
  std::uint64_t leaf_sums = 0;   // number of sums of leaves that the arena has room for
  // kAdvise is a hint: the system's shmem_enabled decides. With kExplicit, the arena takes no other
  // memory than huge pages of the pool; if the pool has too few, it is created as with kAdvise.
  HugePages huge_pages = HugePages::kOff;
  unsigned threads = 2;  // number of threads that touch the memory
  // NUMA node to allocate from while it has free memory. If the system rejects the placement, the
  // arena is created anyway.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  // Gets the reason why the arena is not placed as requested, or not in huge pages of the pool.
  std::function<void(const Error&)> on_fallback = nullptr;
  // Only these bytes of the data will be used, as {offset, bytes}: the arena has no memory for the
  // others. Empty: all of it.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> used = {};
  std::stop_token stop = {};  // cancels the creation; nothing of the arena remains
  std::atomic<std::uint64_t>* done_bytes = nullptr;  // counts while the memory is touched
  // Size of the file: header, data and sums, in whole pages of the size that is asked for.
  [[nodiscard]] std::uint64_t file_bytes() const;
};

// The creator's side of an arena.
class SharedArena {
 public:
  // Checks the available memory, then allocates, touches, maps and seals. kResourceExhausted names
  // the bytes needed and available; kCancelled if `stop` was requested. Creating takes about one
  // second per GiB, and destroying about a tenth of that: do neither on a loop thread.
  [[nodiscard]] static Result<SharedArena> create(const ArenaOptions& options);
  SharedArena(SharedArena&&) noexcept = default;
  SharedArena& operator=(SharedArena&& other) noexcept {
    if (this != &other) {
      retire();
      region_ = std::move(other.region_);
      fd_ = std::move(other.fd_);
      home_ = other.home_;
      is_explicit_ = other.is_explicit_;
    }
    return *this;
  }
  // Marks the arena as retired, so that readers let their mappings of it go.
  ~SharedArena() { retire(); }

  [[nodiscard]] std::uint64_t data_bytes() const noexcept;
  [[nodiscard]] std::uint64_t leaf_sums() const noexcept;
  // Size of all memory of the arena.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return region_.bytes().size(); }
  // Whether the memory is of the system's pool of huge pages.
  [[nodiscard]] bool is_explicit() const noexcept { return is_explicit_; }
  // The data, read-only. It is stable while this process holds a ReadLease or a WriteLease.
  [[nodiscard]] std::span<const std::byte> data() const noexcept;
  [[nodiscard]] ArenaState state() const noexcept;
  [[nodiscard]] ArenaIdentity identity() const noexcept;

  // Takes the write lock and marks the arena as being written with this identity (its content
  // digest is set by complete()). kBusy while any reader, in any process, holds a lease.
  [[nodiscard]] Result<WriteLease> try_write_lease(const ArenaIdentity& identity);
  // Whether the data is read-only in this process. Only the holder of a lease gets a stable answer.
  [[nodiscard]] bool is_protected() const noexcept;
  // Gives a complete content another name, for a writer that learns it late. Only the fence and the
  // version of `identity` are taken. Call it while this process holds a ReadLease and before
  // share(): no other process can then see the change.
  void rename(const ArenaIdentity& identity);
  // Takes a read lease, which prevents writing while this process reads. kBusy while the arena is
  // being written.
  [[nodiscard]] Result<ReadLease> try_read_lease() const;
  // Returns a new read-only descriptor without any lock, for another process.
  [[nodiscard]] Result<UniqueFd> share() const;
  // The mapping in which the data lies.
  [[nodiscard]] const MappedRegion& region() const noexcept { return region_; }
  // Returns the ids of other processes of this user that hold a lease, for error sentences. Slow:
  // reads /proc.
  [[nodiscard]] std::vector<int> holders() const;

 private:
  void retire() noexcept;
  SharedArena(UniqueFd fd, MappedRegion region, bool is_explicit) noexcept
      : region_(std::move(region)), fd_(std::move(fd)), is_explicit_(is_explicit) {}
  [[nodiscard]] static Result<SharedArena> make(const ArenaOptions& options, HugePages pages,
                                                const std::string& what);
  [[nodiscard]] static Result<> reserve(int fd, std::uint64_t offset, std::uint64_t bytes,
                                        const ArenaOptions& options, const std::string& what);
  // Declared first, so that it is destroyed last. fork() waits for the close of fd_, which must not
  // be the one that frees the memory.
  MappedRegion region_;
  UniqueFd fd_;
  HomeProcess home_;
  bool is_explicit_ = false;
};

// What a reader expects of an arena. Members without a value are not compared.
struct ArenaExpectation {
  std::optional<std::pair<std::uint64_t, std::array<std::uint64_t, 2>>> fence;  // epoch, run id
  std::optional<std::pair<std::uint64_t, std::uint64_t>> version;               // epoch, step
  std::optional<Digest> layout;
  std::optional<Digest> content;
  std::optional<std::uint64_t> data_bytes;
};

// Which file an arena is. It stays the same while any descriptor or mapping of the arena exists.
struct ArenaFile {
  // kIo if the system call fails.
  [[nodiscard]] static Result<ArenaFile> of(int fd);
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  friend auto operator<=>(const ArenaFile&, const ArenaFile&) = default;
};

// The mappings of arenas that a reader keeps for later versions: the writer uses a few arenas in
// turn, and to map, populate and unmap one takes tens of milliseconds per GiB. A kept mapping keeps
// the memory of its arena allocated. A writer that frees an arena therefore marks it as retired.
//
// Thread: any; each call takes a lock for a short time.
class KeptMappings {
 public:
  using Region = std::shared_ptr<const MappedRegion>;
  // Returns the kept mapping of this file, or null.
  [[nodiscard]] Region find(const ArenaFile& file) const;
  void keep(const ArenaFile& file, Region region);
  // Removes the mappings whose arenas are retired, or all mappings, and returns them. A view of one
  // of them continues to use it. They are unmapped when the last pointer is destroyed, which takes
  // milliseconds per GiB.
  [[nodiscard]] std::vector<Region> take_retired();
  [[nodiscard]] std::vector<Region> take_all();
  [[nodiscard]] bool empty() const;

 private:
  mutable std::mutex mutex_;
  std::map<ArenaFile, Region> regions_;  // under mutex_
};

// A reader's side of an arena. It holds its own read-only descriptor, a read lock and a mapping. A
// reader that needs the bytes only at times gives the lock up in between and keeps the mapping, so
// that a reader that hangs does not occupy the arena.
class ArenaView {
 public:
  // Opens the arena of `fd`, which is borrowed. kBusy while it is being written; kRefused if it is
  // not an arena, is not sealed, is unfinished or differs from `expected` (the sentence names both
  // values). `threads` map its pages. With `kept` (borrowed for this call, may be null), a kept
  // mapping of the arena is used, and a new one is kept.
  [[nodiscard]] static Result<ArenaView> open(int fd, const ArenaExpectation& expected = {},
                                              unsigned threads = 1, KeptMappings* kept = nullptr);

  [[nodiscard]] std::span<const std::byte> data() const noexcept;
  [[nodiscard]] ArenaIdentity identity() const noexcept;
  // The sums of the leaves, which the writer computed while it wrote them; empty if it gave none.
  // The pointer is into the mapping.
  [[nodiscard]] std::span<const WordSum> leaf_sums() const noexcept;
  // Keeps the data mapped after this view has ended.
  [[nodiscard]] const std::shared_ptr<const MappedRegion>& region() const noexcept {
    return region_;
  }
  // Whether the writer cannot change data and sums by mistake, as long as this lease is held.
  [[nodiscard]] bool is_protected() const noexcept;
  // Returns a new read-only descriptor without any lock, for another process.
  [[nodiscard]] Result<UniqueFd> share() const;
  // Releases the lease and keeps the mapping. The data must not be read until renew() has
  // succeeded. Does nothing without a lease.
  void suspend() noexcept;
  // Takes the lease again. kBusy while the arena is being written; kRefused if its content is no
  // longer the one that was opened. Does nothing with a lease.
  [[nodiscard]] Result<> renew();
  // Releases the lease at once and returns the mapping, which must not be read any more. Unmapping
  // takes milliseconds per GiB, so a loop thread gives the mapping to another thread.
  [[nodiscard]] std::shared_ptr<const MappedRegion> end() &&;

 private:
  ArenaView(ReadLease lease, std::shared_ptr<const MappedRegion> region,
            const ArenaIdentity& identity, std::uint64_t data_at, std::uint64_t data_bytes) noexcept
      : region_(std::move(region)),
        lease_(std::move(lease)),
        identity_(identity),
        data_at_(data_at),
        data_bytes_(data_bytes) {}
  std::shared_ptr<const MappedRegion> region_;  // destroyed last, as in SharedArena
  ReadLease lease_;
  ArenaIdentity identity_;  // at open()
  bool suspended_ = false;
  std::uint64_t data_at_ = 0;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace wsync
