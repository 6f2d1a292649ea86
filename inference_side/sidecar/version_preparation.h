// VersionPreparation: makes the attached ranks and the devices ready for each version that can be
// loaded, while the engines still serve an older one. So a pause does not begin with work that
// could be done before it.
//
// For each rank its load plan and the expected checksums are computed on a worker thread (LoadCache
// shares them between equal ranks), then the rank is sent Prepare. For devices the bytes are
// registered (DeviceStaging).
//
// Thread: the loop's; callbacks come on the loop.
// Outlives: the loop and the devices outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "inference_side/sidecar/device_staging.h"
#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/sidecar/load_cache.h"
#include "inference_side/staging/store.h"
#include "shared/base/thread_pool.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

class VersionPreparation {
 public:
  using Ranks = std::vector<std::shared_ptr<EngineRank>>;
  struct Callbacks {
    // The plan of a rank is known now, or cannot be made; may come inside a call.
    std::function<void(const std::string& replica)> on_rank_prepared;
    // The devices can read a version now, or cannot.
    std::function<void()> on_devices_ready;
  };
  // `devices`: null for unified ones.
  VersionPreparation(Loop& loop, const reload::DeviceGroup* devices, Callbacks callbacks);
  // Waits for what is being computed and registered.
  ~VersionPreparation();
  VersionPreparation(const VersionPreparation&) = delete;
  VersionPreparation& operator=(const VersionPreparation&) = delete;

  // `on_ready` comes when the devices are ready for the version and each of `ranks` has answered,
  // is gone, or has not answered within a few seconds after it was sent Prepare.
  void add(const std::shared_ptr<const staging::HeldVersion>& version, const Ranks& ranks,
           std::function<void()> on_ready);
  // Each of `ranks` that was sent Prepare for the version is sent Release. False when it is not
  // here.
  bool remove(const Version& version, const Ranks& ranks);
  // A rank has attached: it is prepared for every version that is here.
  void attached(const std::shared_ptr<EngineRank>& rank);
  // A rank is gone: nobody waits for its answer.
  void detached(const std::shared_ptr<EngineRank>& rank) { answered(rank, nullptr); }
  void handle(const std::shared_ptr<EngineRank>& rank, const control::Prepared& prepared);
  // A load of the version was cancelled, after which an engine has forgotten it.
  void renew(const std::shared_ptr<EngineRank>& rank, const Version& version);

  // Null when the version is not here.
  [[nodiscard]] std::shared_ptr<const staging::HeldVersion> find(const Version& version) const;
  // Of the newest version; null when there is none.
  [[nodiscard]] const Manifest* newest_layout() const;
  // Whether the devices can read the version, or why not; nothing while that is not known. Always
  // a success on unified devices.
  [[nodiscard]] std::optional<Result<>> devices_ready(const Version& version) const;
  // Null until the devices are ready for it, and on unified devices.
  [[nodiscard]] std::shared_ptr<const DeviceVersion> on_devices(const Version& version) const;

 private:
  // Who has not answered Prepare of a version yet.
  struct Waiting {
    Ranks ranks;
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
  void answered(const std::shared_ptr<EngineRank>& rank, const Version* version);

  Loop& loop_;
  const reload::DeviceGroup* devices_;  // null: unified
  const Callbacks callbacks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<ThreadPool> digest_threads_;  // GPUs only
  std::shared_ptr<LoadCache> cache_;
  std::map<Version, std::shared_ptr<const staging::HeldVersion>> versions_;
  std::map<Version, Waiting> waiting_;
  Worker worker_;                                  // computes load plans
  std::unique_ptr<DeviceStaging> device_staging_;  // null: unified
};

}  // namespace wsync::agent
