// LoadDriver: drives the LoadQueue of a sidecar. It collects the needs of each load from the
// registry, the preparation and the devices, and executes the queue's commands.
//
// Thread: the loop's. Everything that the options refer to must outlive the driver.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/pipeline_runner.h"
#include "inference_side/sidecar/engine_devices.h"
#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/sidecar/engine_registry.h"
#include "inference_side/sidecar/load_queue.h"
#include "inference_side/sidecar/version_preparation.h"
#include "inference_side/staging/held_patch.h"
#include "inference_side/staging/sidecar.h"
#include "shared/loop/loop.h"

namespace wsync::agent {

struct LoadDriverOptions {
  const EngineRegistry* registry = nullptr;
  VersionPreparation* preparation = nullptr;
  EngineDevices* devices = nullptr;  // null: unified
  // The connection of an attached rank; nullptr if it has ended.
  std::function<std::shared_ptr<EngineRank>(reload::EngineId)> find;
  // Whether what a patch leaves alone in this replica is looked at from time to time
  // (ScrubPasses::may_be_patched). Without it, all of each version is loaded.
  std::function<bool(const std::string& replica)> may_be_patched;
  // Whether all bytes of this replica were compared since it attached, and none was found to differ
  // since then. Without it, all of the next version is loaded.
  std::function<bool(const std::string& replica)> is_proved;
  // Posts an event of a replica to its switch. It is never delivered inside the call.
  std::function<void(const std::string& replica, staging::RankEvent)> notify;
};

// This class has more than 25 methods: each command of LoadQueue and each event of the devices has
// its own.
class LoadDriver {
 public:
  LoadDriver(Loop& loop, LoadDriverOptions options);
  ~LoadDriver() { *alive_ = false; }
  LoadDriver(const LoadDriver&) = delete;
  LoadDriver& operator=(const LoadDriver&) = delete;

  // ---- from the switches and the engines ----

  void begin(const std::string& replica, const reload::BeginLoad& load);
  // Whether this request is that of the load of the replica which runs.
  [[nodiscard]] bool is_current(const std::string& replica, std::uint64_t request) const {
    return queue_.is_current(replica, request);
  }
  void cancel(const std::string& replica, std::uint64_t request);
  // The ranks of the replica, which hold `base`, will probably load `target`: they read its patch,
  // if there is one that they may take, while they still serve. One whose reading could take much
  // of `deadline`, in which a rank must answer, is left to the load.
  void read_ahead(const std::string& replica, const Version& base, const Version& target,
                  std::chrono::milliseconds deadline);
  // See LoadQueue::expect_more.
  void expect_more(bool expected);
  // A rank has been detached from the registry.
  void engine_lost(const std::string& replica, reload::EngineId engine);
  // A rank has answered the Load of this request.
  void answered(const EngineRank& rank, std::uint64_t request, const control::Loaded& loaded);
  void handle_bucket_ack(const EngineRank& rank, std::uint64_t request,
                         const control::BucketAck& ack);
  // The patch that this request's load was sent with; null for a load of all bytes.
  [[nodiscard]] std::shared_ptr<const staging::HeldPatch> patch_of(const std::string& replica,
                                                                   std::uint64_t request) const;
  // The preparation has removed the version.
  void release(const Version& version);

  // Whether the engines of this replica execute a Load. They may not poll their links meanwhile.
  [[nodiscard]] bool is_loading(const std::string& replica) const;

  // ---- from the preparation and the devices ----

  // Call when a condition for the load of this replica, or of every replica, may have changed.
  void advance(const std::string& replica);
  void advance_all();
  void bucket_ready(const reload::BucketReady& ready);
  void run_finished(const Result<reload::PipelineReport>& result);
  void connect_finished(const Result<>& outcome);
  void allocate_finished(const Result<>& outcome);
  // Frees the device buffers if nothing needs them.
  void free_unused_buffers();

 private:
  [[nodiscard]] LoadNeeds needs_of(const std::string& replica, const Version& version) const;
  void start_run();
  void execute(const LoadCommands& commands);
  void execute(const SendLoad& command);
  void execute(const SendAbort& command);
  void execute(const ReportLoadFailed& command);
  void execute(const StartRun& command);
  [[nodiscard]] bool may_lack_base(const std::string& replica, const Version& target) const;
  [[nodiscard]] std::shared_ptr<const staging::HeldPatch> choose_patch(const std::string& replica,
                                                                       const Version& base,
                                                                       const Version& target) const;
  [[nodiscard]] Result<> send_load(const SendLoad& load, const LoadRank& seat,
                                   const staging::HeldPatch* patch);
  [[nodiscard]] Result<> start_pipeline(const StartRun& run);
  // By device: what its ranks need of the version. Empty if that is not known.
  [[nodiscard]] std::vector<std::vector<std::shared_ptr<const reload::NeededBytes>>>
  needed_by_devices(const StartRun& run) const;

  Loop& loop_;
  const LoadDriverOptions options_;
  LoadQueue queue_;
  struct PatchInUse {
    std::uint64_t request = 0;
    std::shared_ptr<const staging::HeldPatch> patch;
  };
  // By replica; until every rank has answered, or the load is cancelled or replaced.
  std::map<std::string, PatchInUse> patches_;
  // By replica: the plans of its ranks, and whether the sums of a patch by these can be compared
  // without the bytes of its base.
  struct PatchedPlans {
    std::vector<std::shared_ptr<const PreparedLoad>> plans;
    bool needs_base = false;
  };
  mutable std::map<std::string, PatchedPlans> patched_plans_;
  std::optional<bool> own_links_;  // of the last run
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace wsync::agent
