// HeldVersions: the versions that can be offered to sidecars, with what is said of them. The
// trainer holds the snapshots of most of them, or is taking one. Of the others, the trainer is
// gone, and sidecars hold copies. Thread: confined to one thread.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/snapshot_stream.h"

namespace wsync::coordinator {

class HeldVersions {
 public:
  // The trainer holds the snapshot, or is taking it.
  void add(PublishRequested publish) {
    held_.push_back({.publish = std::move(publish), .is_with_trainer = true});
  }
  // Only sidecars hold this version.
  void add_without_trainer(PublishRequested publish) {
    held_.push_back({.publish = std::move(publish), .is_with_trainer = false});
  }
  // Returns nullptr if nothing is known of the version.
  [[nodiscard]] const PublishRequested* find(const Version& version) const {
    const Held* held = entry(version);
    return held == nullptr ? nullptr : &held->publish;
  }
  // Whether the trainer holds its snapshot, or is taking it.
  [[nodiscard]] bool is_with_trainer(const Version& version) const {
    const Held* held = entry(version);
    return held != nullptr && held->is_with_trainer;
  }
  // The snapshot of this version is complete. Does nothing if it is not here.
  void complete(const SnapshotEnded& snapshot) {
    const auto found = std::ranges::find_if(
        held_, [&](const Held& held) { return held.publish.version == snapshot.version; });
    if (found != held_.end()) coordinator::complete(found->publish, snapshot);
  }
  // Forgets all other versions; the trainer drops their snapshots.
  template <class Predicate>
  void keep_only(CoordinatorContext& context, Predicate is_needed) {
    std::erase_if(held_, [&](const Held& held) {
      const bool needed = is_needed(held.publish.version);
      if (!needed && held.is_with_trainer) context.emit(DropVersion{held.publish.version});
      return !needed;
    });
  }
  // The trainer is gone, with its snapshots.
  void lose_trainer() {
    std::erase_if(held_, [](const Held& held) { return !held.publish.is_complete; });
    for (Held& held : held_) held.is_with_trainer = false;
  }

 private:
  struct Held {
    PublishRequested publish;
    bool is_with_trainer = true;
  };
  [[nodiscard]] const Held* entry(const Version& version) const {
    const auto found = std::ranges::find_if(
        held_, [&](const Held& held) { return held.publish.version == version; });
    return found == held_.end() ? nullptr : &*found;
  }
  std::vector<Held> held_;
};

}  // namespace wsync::coordinator
