// PatchShelf: the patches that a sidecar holds, and those that are being made. A patch leads from a
// held version to another held version of the same layout. It is made on a thread of its own while
// the engines serve the base, and it is dropped with either version, or when no rank serves its
// base any longer. A patch that cannot be made is no error: the version is loaded in full.
//
// Thread: the loop's; callbacks are called on the loop. The loop must outlive this object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <vector>

#include "inference_side/staging/held_patch.h"
#include "inference_side/staging/store.h"
#include "shared/base/clock.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

struct PatchOptions {
  bool enabled = true;
  // Versions that have neither come as changes from the base nor have its content are compared with
  // it.
  bool compares = true;
  double max_share = 0.4;  // of the model: a larger patch is not made
  unsigned threads = 2;
  std::uint64_t value_cost = patch::kHostValueCost;  // as in PatchLimits
  // Bytes that may be held beside everything else.
  std::function<std::uint64_t()> room = [] { return ~std::uint64_t{0}; };
  // The size of all patches is another one now. `back`: of those that lead back.
  std::function<void(std::uint64_t bytes, std::uint64_t back)> on_bytes = [](std::uint64_t,
                                                                             std::uint64_t) {};
  // A patch was made; null if it could not be made. For traces and metrics.
  std::function<void(const Version& base, const Version& target, const staging::HeldPatch* patch,
                     TimePoint begin, TimePoint end)>
      on_made =
          [](const Version&, const Version&, const staging::HeldPatch*, TimePoint, TimePoint) {};
};

class PatchShelf {
 public:
  using Held = std::shared_ptr<const staging::HeldVersion>;
  // So many patches lead to one version; what serves another one loads it in full.
  static constexpr std::size_t kBasesMax = 2;

  PatchShelf(Loop& loop, PatchOptions options);
  // Stops what is being made.
  ~PatchShelf();
  PatchShelf(const PatchShelf&) = delete;
  PatchShelf& operator=(const PatchShelf&) = delete;

  // Makes the patch if there is none. `on_done` is called when it is there or known not to come,
  // also because it was dropped, not inside the call; never if the target is forgotten before.
  // Returns false, and calls nothing, if there is nothing to make: patches are disabled, the
  // layouts differ, both would have to be compared and are not, or there is no room. `changes` (may
  // be null): by which the target has come; see HeldPatch::make().
  bool make(const Held& base, const Held& target, std::function<void()> on_done,
            std::shared_ptr<const staging::ReceivedChanges> changes = nullptr);
  // Makes the patch from the target of `forward`, which is on the shelf, back to `base`, its base
  // with its bytes. It does nothing if there is one, or if it would not fit. It is dropped when a
  // patch to another version needs its room.
  void make_back(const std::shared_ptr<const staging::HeldPatch>& forward, const Held& base);
  // Drops all that leads back, because a version needs its room.
  void drop_back();
  // Drops all patches from this version and to it.
  void forget(const Version& version);
  // Drops all patches from other versions than these. Who waits for one of them is called later.
  void keep_only(const std::set<Version>& bases);
  // Returns nullptr if it is not here.
  [[nodiscard]] std::shared_ptr<const staging::HeldPatch> find(const Version& base,
                                                               const Version& target) const;
  // Those that are there.
  [[nodiscard]] std::vector<std::shared_ptr<const staging::HeldPatch>> all() const;
  // Size of all patches, and of those that lead back.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint64_t bytes_back() const;
  // The largest size of all patches to one version of a model of so many bytes. One that leads back
  // is not counted, because it is dropped first. `comes_as_changes`:
  // the changes by which it has come are held as well, until the patches are made of them. Those
  // that a trainer on this host has made are in its memory.
  [[nodiscard]] static constexpr std::uint64_t bytes_max(std::uint64_t model_bytes,
                                                         double max_share, bool comes_as_changes) {
    const std::size_t held = kBasesMax + (comes_as_changes ? 1 : 0);
    return held * static_cast<std::uint64_t>(std::min(max_share, patch::kPatchShareMax) *
                                             static_cast<double>(model_bytes));
  }

 private:
  struct Entry {
    Version base;
    Version target;
    std::uint64_t number = 0;
    std::stop_source stop;
    std::shared_ptr<const staging::HeldPatch> patch;  // null while it is made
    std::vector<std::function<void()>> waiting;
  };
  using Outcome = Result<std::shared_ptr<const staging::HeldPatch>>;
  // Whether it leads to an older version.
  [[nodiscard]] static bool leads_back(const Entry& entry) noexcept {
    return entry.target < entry.base;
  }
  [[nodiscard]] std::uint64_t worth(const staging::HeldVersion& target) const;
  [[nodiscard]] std::uint64_t max_bytes(const staging::HeldVersion& target) const;
  // `make` is called on the worker's thread.
  [[nodiscard]] bool submit(const Version& base, const Version& target, std::uint64_t max_bytes,
                            std::function<void()> on_done,
                            std::function<Outcome(const staging::PatchLimits&)> make);
  void made(std::uint64_t number, const Outcome& outcome, TimePoint begin);
  template <class Predicate>
  void drop(const Predicate& predicate);
  template <class Predicate>
  [[nodiscard]] std::uint64_t bytes_of(const Predicate& predicate) const;

  Loop& loop_;
  const PatchOptions options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<Entry> entries_;
  std::uint64_t next_ = 1;
  std::unique_ptr<Worker> worker_;
};

}  // namespace wsync::agent
