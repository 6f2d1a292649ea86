// VersionPreparation: prepares the attached ranks and the devices for each version that can be
// loaded, while the engines still serve an older one. This work therefore does not lengthen the
// pause.
//
// A worker thread computes the load plan of each rank (LoadCache shares it between equal ranks).
// Then Prepare is sent to the rank. For devices the bytes are registered (DeviceStaging).
//
// Thread: the loop's; callbacks are called on the loop. The loop and the devices must outlive this
// object.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "inference_side/sidecar/device_staging.h"
#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/sidecar/load_cache.h"
#include "inference_side/sidecar/patch_shelf.h"
#include "inference_side/staging/store.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

class VersionPreparation {
 public:
  using Ranks = std::vector<std::shared_ptr<EngineRank>>;
  // A rank that is silent for this long after Prepare is no longer awaited.
  static constexpr std::chrono::milliseconds kAnswerWait{5'000};
  struct Callbacks {
    // The plan of a rank is known now, or cannot be made. May be called inside a call.
    std::function<void(const std::string& replica)> on_rank_prepared;
    // The devices can read a version now, or it is known that they cannot.
    std::function<void()> on_devices_ready;
    // The bytes of a version are not those of its digest, or an engine refuses it. Not called
    // inside a call.
    std::function<void(const Version& version, const Error& why)> on_unusable;
  };
  // `devices`: null for unified devices.
  VersionPreparation(Loop& loop, const reload::DeviceGroup* devices, PatchOptions patches,
                     Callbacks callbacks);
  // Waits for computations and registrations in progress.
  ~VersionPreparation();
  VersionPreparation(const VersionPreparation&) = delete;
  VersionPreparation& operator=(const VersionPreparation&) = delete;

  // `on_ready` is called when the devices are ready for the version and each of `ranks` has
  // answered, has gone, or has not answered within a few seconds after Prepare was sent to it. It
  // is also called after the patches from what these ranks serve are there, or are known not to
  // come, but at the latest after these few seconds. `changes` (may be null): by which the version
  // has come.
  // `wait`: those few seconds.
  void add(const std::shared_ptr<const staging::HeldVersion>& version, const Ranks& ranks,
           std::function<void()> on_ready,
           const std::shared_ptr<const staging::ReceivedChanges>& changes = nullptr,
           std::chrono::milliseconds wait = kAnswerWait);
  // Only what changes to the version is here, so it can be loaded by nobody before add() is called.
  // `on_ready` is called as by add() when the patches are there, or are known not to come, and
  // after `wait` at the latest.
  void add_changes(const std::shared_ptr<const staging::HeldVersion>& version, const Ranks& ranks,
                   std::function<void()> on_ready,
                   const std::shared_ptr<const staging::ReceivedChanges>& changes,
                   std::chrono::milliseconds wait = kAnswerWait);
  // Sends Release to each of `ranks` that was sent Prepare for the version. Returns false if the
  // version is not here. `is_lent`: the patches from it are kept, because its memory is going to be
  // that of their target.
  bool remove(const Version& version, const Ranks& ranks, bool is_lent = false);
  // A rank has attached, or is no longer silent. Prepares it for every version that is here and for
  // which it has not been prepared.
  void attached(const std::shared_ptr<EngineRank>& rank);
  // A rank has become silent. Its answer is no longer awaited, and it is sent no Prepare: its queue
  // would grow without limit.
  void silenced(const std::shared_ptr<EngineRank>& rank) { answered(rank, nullptr); }
  // A rank is gone. Its answer is no longer awaited.
  void detached(const std::shared_ptr<EngineRank>& rank) { answered(rank, nullptr); }
  void handle(const std::shared_ptr<EngineRank>& rank, const control::Prepared& prepared);
  // The answer of a rank that declines a version, and waits for another model. The version stays,
  // because another engine may take it.
  void declined(const std::shared_ptr<EngineRank>& rank, const control::Prepared& prepared);
  // A load of the version was cancelled. The engine has forgotten the version, so prepare the rank
  // again.
  void renew(const std::shared_ptr<EngineRank>& rank, const Version& version);

  // Reads the bytes of a version that is here and compares them, unless it has been done. `done`
  // may be called inside the call; it is not called if the version is removed before.
  void verify(const std::shared_ptr<const staging::HeldVersion>& version,
              std::function<void(Result<>)> done);

  // What `ranks` have committed is another version now, or one of them has gone. `is_quiet`: none
  // of them is loading. What leads back from a version that is served is made then, so that a
  // rollback is a patch as well, or at the latest when nobody serves the version before any longer.
  void active_changed(const Ranks& ranks, bool is_quiet);
  // The patches between versions that are held.
  [[nodiscard]] PatchShelf& patches() noexcept { return *patches_; }

  // Returns nullptr if the version is not here.
  [[nodiscard]] std::shared_ptr<const staging::HeldVersion> find(const Version& version) const;
  // All versions that are here.
  [[nodiscard]] std::vector<Version> versions() const;
  // Layout of the newest version; nullptr if there is none.
  [[nodiscard]] const Manifest* newest_layout() const;
  // Whether the devices can read the version, or the reason why not; std::nullopt while this is
  // unknown. Always success on unified devices.
  [[nodiscard]] std::optional<Result<>> devices_ready(const Version& version) const;
  // Returns nullptr on unified devices, and until the devices are ready for the version.
  [[nodiscard]] std::shared_ptr<const DeviceVersion> on_devices(const Version& version) const;

 private:
  // Ranks that have not answered the Prepare of a version yet.
  struct Waiting {
    std::chrono::milliseconds wait{};
    Ranks ranks;
    std::size_t patches = 0;
    bool devices_ready = false;
    std::function<void()> on_ready;
    std::unique_ptr<Timer> deadline;
  };
  void request_plan(const std::shared_ptr<EngineRank>& rank,
                    const std::shared_ptr<const staging::HeldVersion>& version);
  [[nodiscard]] Result<> send_prepare(EngineRank& rank, const staging::HeldVersion& version,
                                      const PreparedLoad& load) const;
  void pass_over_silent(const Version& version);
  void devices_staged(const Version& version);
  void make_patches(const std::shared_ptr<const staging::HeldVersion>& version, const Ranks& ranks,
                    const std::shared_ptr<const staging::ReceivedChanges>& changes);
  void answered(const std::shared_ptr<EngineRank>& rank, const Version* version);
  static void mark_unloadable(EngineRank& rank, const control::Prepared& prepared);

  Loop& loop_;
  const reload::DeviceGroup* devices_;  // null: unified
  const Callbacks callbacks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<LoadCache> cache_;
  std::map<Version, std::shared_ptr<const staging::HeldVersion>> versions_;
  std::map<Version, Waiting> waiting_;
  std::unique_ptr<PatchShelf> patches_;
  Worker worker_;                                  // computes load plans
  std::unique_ptr<DeviceStaging> device_staging_;  // null: unified
};

}  // namespace wsync::agent
