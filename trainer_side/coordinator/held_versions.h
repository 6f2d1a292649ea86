// HeldVersions: the versions whose snapshots this process holds for sidecars to read, and the one
// whose snapshot is being taken. Thread: confined to one thread.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/snapshot_stream.h"

namespace wsync::coordinator {

class HeldVersions {
 public:
  void add(PublishRequested publish) { held_.push_back(std::move(publish)); }
  // Returns nullptr if the snapshot is not here.
  [[nodiscard]] const PublishRequested* find(const Version& version) const {
    const auto found = std::ranges::find(held_, version, &PublishRequested::version);
    return found == held_.end() ? nullptr : &*found;
  }
  // The snapshot of this version is complete. Does nothing if it is not here.
  void complete(const SnapshotEnded& snapshot) {
    const auto found = std::ranges::find(held_, snapshot.version, &PublishRequested::version);
    if (found != held_.end()) coordinator::complete(*found, snapshot);
  }
  // Drops all other snapshots.
  template <class Predicate>
  void keep_only(CoordinatorContext& context, Predicate is_needed) {
    std::erase_if(held_, [&](const PublishRequested& held) {
      const bool needed = is_needed(held.version);
      if (!needed) context.emit(DropVersion{held.version});
      return !needed;
    });
  }

 private:
  std::vector<PublishRequested> held_;
};

}  // namespace wsync::coordinator
