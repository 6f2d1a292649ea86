// Arenas: memfds that hold one whole version of the weights, shared between the processes of a host
// without a copy.
//
// File layout: one header page (kArenaHeaderBytes), then the data. The file is sealed with SHRINK,
// GROW and FUTURE_WRITE: its size never changes (no SIGBUS), and only the creator's mapping can
// write.
//
// Leases are open-file-description locks, so the kernel keeps them: no message and no timeout
// releases one, and a killed holder's lock goes with it.
//   - the creator writes only under a WriteLease;
//   - every reader re-opens the descriptor read-only and takes a read lock *before* it verifies and
//     maps (ArenaView), or, in the creating process, takes a ReadLease;
//   - a forked child shares the descriptions of its parent, so whoever ends a lease unlocks it: the
//     close alone would leave it to the child. Arenas are not mapped in the child.
// All lease calls are non-blocking: kBusy says that the other side holds it; the caller tries again
// on a timer until its deadline.
//
// Thread: objects are not synchronised; spans may be used from any thread while their owner lives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/fork_guard.h"
#include "shared/base/unique_fd.h"

namespace wsync {

inline constexpr std::uint64_t kArenaHeaderBytes = 4096;  // data begins here in the file

// What an arena says about its content.
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

// A shared mapping, unmapped on destruction.
class MappedRegion {
 public:
  MappedRegion() noexcept = default;
  // Maps the first `bytes` of fd; errors are kIo or kResourceExhausted.
  [[nodiscard]] static Result<MappedRegion> map(int fd, std::uint64_t bytes, bool writable);
  MappedRegion(MappedRegion&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedRegion& operator=(MappedRegion&& other) noexcept {
    if (this != &other) {
      unmap();
      bytes_ = std::exchange(other.bytes_, {});
    }
    return *this;
  }
  ~MappedRegion() { unmap(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  // A child that fork() makes does not have this mapping: touching it there is a SIGSEGV. kIo.
  [[nodiscard]] Result<> keep_from_children() const;
  // Makes all page-table entries now, with `threads` threads: writable pages are allocated as well.
  // kResourceExhausted when there is not enough memory (never a SIGBUS); kCancelled, a few
  // milliseconds later, when it is stopped.
  [[nodiscard]] Result<> populate(bool writable, unsigned threads,
                                  const std::stop_token& stop = {}) const;

 private:
  void unmap() noexcept;
  std::span<std::byte> bytes_;
};

// A read lock on an arena, held by a descriptor of its own. Released on destruction, also while a
// forked child has that descriptor; never by such a child.
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
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
  HomeProcess home_;
};

// The right to write an arena. Borrows it: the SharedArena outlives the lease. Destroyed without
// complete(), it leaves the arena marked as unfinished, which no reader accepts.
class WriteLease {
 public:
  WriteLease(WriteLease&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), file_(std::exchange(other.file_, {})) {}
  WriteLease& operator=(WriteLease&&) = delete;
  ~WriteLease();
  // The arena's data, writable.
  [[nodiscard]] std::span<std::byte> data() const noexcept;
  // The bytes are all there: writes the content digest and the final state, and lets the lease go.
  void complete(const Digest& content) &&;

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
  bool huge_pages = false;       // a hint; the system's shmem_enabled decides
  unsigned threads = 2;          // that touch the memory
  // NUMA node that the memory is taken from while it has some; where that cannot be said to the
  // system, the arena is made all the same, and `on_unplaced` is told why.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  std::function<void(const Error&)> on_unplaced = nullptr;
  std::stop_token stop = {};  // ends the making early, and nothing is left of it
};

// The creator's side of an arena.
class SharedArena {
 public:
  // Checks the memory that is available, allocates, touches, maps and seals. kResourceExhausted
  // names the bytes needed and available; kCancelled when it was stopped. Takes about a second for
  // each GiB, as destroying does a tenth of it: never on a loop's thread.
  [[nodiscard]] static Result<SharedArena> create(const ArenaOptions& options);

  [[nodiscard]] std::uint64_t data_bytes() const noexcept;
  // The data, read only. Stable while a ReadLease or WriteLease of this process is held.
  [[nodiscard]] std::span<const std::byte> data() const noexcept;
  [[nodiscard]] ArenaState state() const noexcept;
  [[nodiscard]] ArenaIdentity identity() const noexcept;

  // Takes the write lock and marks the arena as being written with this identity (its content
  // digest is set by complete()). kBusy while any reader, in any process, holds a lease.
  [[nodiscard]] Result<WriteLease> try_write_lease(const ArenaIdentity& identity);
  // Keeps the arena from being written while it is read in this process. kBusy while it is written.
  [[nodiscard]] Result<ReadLease> try_read_lease() const;
  // A new read-only descriptor without any lock, to be handed to another process.
  [[nodiscard]] Result<UniqueFd> share() const;
  // Other processes of this user that have the arena open, for "busy" sentences. Slow: reads /proc.
  [[nodiscard]] std::vector<int> holders() const;

 private:
  SharedArena(UniqueFd fd, MappedRegion region) noexcept
      : region_(std::move(region)), fd_(std::move(fd)) {}
  MappedRegion region_;  // gone last: fork() waits for a close, which must not free the memory
  UniqueFd fd_;
};

// What a reader demands of an arena; members without a value are not compared.
struct ArenaExpectation {
  std::optional<std::pair<std::uint64_t, std::array<std::uint64_t, 2>>> fence;  // epoch, run id
  std::optional<std::pair<std::uint64_t, std::uint64_t>> version;               // epoch, step
  std::optional<Digest> layout;
  std::optional<Digest> content;
  std::optional<std::uint64_t> data_bytes;
};

// A reader's side of an arena: holds its own read-only descriptor, a read lock and a mapping.
class ArenaView {
 public:
  // `fd` is borrowed. kBusy while it is being written; kRefused when it is not an arena, is not
  // sealed, is unfinished or differs from what is expected (the sentence names both values).
  [[nodiscard]] static Result<ArenaView> open(int fd, const ArenaExpectation& expected = {},
                                              unsigned threads = 1);

  [[nodiscard]] std::span<const std::byte> data() const noexcept;
  [[nodiscard]] ArenaIdentity identity() const noexcept;
  // A new read-only descriptor without any lock, to be handed on.
  [[nodiscard]] Result<UniqueFd> share() const;
  // Lets the lease go at once and hands out the mapping, which nobody may read any more. Unmapping
  // takes milliseconds for each GiB: a loop thread leaves that to another one.
  [[nodiscard]] MappedRegion end() &&;

 private:
  ArenaView(ReadLease lease, MappedRegion region, std::uint64_t data_bytes) noexcept
      : region_(std::move(region)), lease_(std::move(lease)), data_bytes_(data_bytes) {}
  MappedRegion region_;  // gone last, as in SharedArena
  ReadLease lease_;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace wsync
