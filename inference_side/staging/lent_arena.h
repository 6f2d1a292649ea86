// LentArena: a mapped arena whose lease its reader has given up, so that its trainer may change it
// to another version. The reader keeps the mapping, and sees what has become of it: the arena has
// the version that it had, or the other one, or its trainer has ended while it was writing.
//
// Thread: any, one at a time.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "inference_side/staging/held_version.h"
#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unique_fd.h"

namespace wsync::staging {

class LentArena {
 public:
  // The arena of a mapped version. It is lent when the last pointer to the version is released.
  // kIo if there is no descriptor for it.
  [[nodiscard]] static Result<LentArena> of(const HeldVersion& version);

  // Whether the view is one of this arena.
  [[nodiscard]] bool is_in(const ArenaView& view) const noexcept {
    return view.region() == region_;
  }
  // Takes it back with this version. kBusy while it is being written; kRefused if it has another
  // version, or none.
  [[nodiscard]] Result<ArenaView> open(const ArenaIdentity& identity) const;
  // Takes it back whatever it has. While the lease exists, data() does not change. kBusy while it
  // is being written.
  [[nodiscard]] Result<ReadLease> lock() const { return lock_arena(fd_.get()); }
  // Without a lease, the bytes of no certain version.
  [[nodiscard]] std::span<const std::byte> data() const noexcept { return data_; }

 private:
  LentArena(UniqueFd fd, const ArenaFile& file, KeptMappings::Region region,
            std::span<const std::byte> data) noexcept
      : fd_(std::move(fd)), file_(file), region_(std::move(region)), data_(data) {}
  UniqueFd fd_;
  ArenaFile file_;
  KeptMappings::Region region_;
  std::span<const std::byte> data_;
};

}  // namespace wsync::staging
