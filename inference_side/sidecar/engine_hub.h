// EngineHub: the sidecar's side of its engine links. It connects the sockets of engines with the
// classes that decide, and executes their decisions:
//
//   EngineRegistry      which ranks are attached, and which hello is refused
//   AbsentEngines       which others are known: those that were refused, and those that start
//   RefusedProcesses    tells when the process of a refused engine has ended
//   LoadDriver          which loads wait, and which run together on the devices (LoadQueue)
//   VersionPreparation  prepares ranks and devices for a version before a pause
//   LoadedSums          compares what the ranks of a replica have loaded with the version
//   EngineDevices       the weight pipeline and the device buffers; none on unified devices
//   Readback            compares what engines hold with what was staged
//   Scrubbing           the same from time to time, while they serve
//   VersionReaders      gives staged versions to processes that are no engines
//
// Commands of a replica's switch arrive through send(). Messages of ranks leave through the OnRank
// callback.
//
// Thread: the loop's. Callbacks are called on the loop, never inside a call. The loop must outlive
// the hub.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "inference_side/reload/pipeline_runner.h"
#include "inference_side/reload/replica_switch.h"
#include "inference_side/sidecar/absent_engines.h"
#include "inference_side/sidecar/engine_devices.h"
#include "inference_side/sidecar/engine_liveness.h"
#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/sidecar/engine_registry.h"
#include "inference_side/sidecar/load_driver.h"
#include "inference_side/sidecar/loaded_sums.h"
#include "inference_side/sidecar/pause_pacer.h"
#include "inference_side/sidecar/readback.h"
#include "inference_side/sidecar/refused_processes.h"
#include "inference_side/sidecar/scrubbing.h"
#include "inference_side/sidecar/version_preparation.h"
#include "inference_side/sidecar/version_readers.h"
#include "inference_side/staging/sidecar.h"
#include "inference_side/staging/store.h"
#include "shared/base/liveness.h"
#include "shared/config/devices_config.h"
#include "shared/control/unix_stream.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::agent {

using RankEvent = staging::RankEvent;

struct ScrubTimes {
  std::chrono::nanoseconds interval = std::chrono::minutes(30);  // as in ScrubPasses
  std::uint32_t share_ppm = 10'000;                              // as in control::Scrub
};

struct EngineHubOptions {
  std::string socket;  // path of the Unix socket for engines
  config::DevicesConfig devices;
  Stages stages = Stages::kAuto;
  std::uint64_t generation = 0;  // of this sidecar process
  // An engine that does not poll its link for longer is silent.
  std::chrono::milliseconds engine_deadline{limits::kEngineDeadlineMs};
  trace::Recorder* trace = nullptr;  // may be null; outlives the hub
  PatchOptions patches = {};
  ScrubTimes scrub = {};
  PauseLimits pauses = {};  // of replicas that adopt
  // As in ScrubbingOptions.
  std::function<void(bool is_equal, std::chrono::nanoseconds cpu)> on_scrubbed =
      [](bool, std::chrono::nanoseconds) {};
  // What the replicas serve or switch to; 0.0 if nothing has been decided.
  std::function<Version()> target = [] { return Version{}; };
  // absent() reports something else. May be empty.
  std::function<void()> on_absent_changed = {};
  // The bytes of a version are not those of its digest, or an engine refuses it.
  std::function<void(const Version& version, const Error& why)> on_unusable = [](const Version&,
                                                                                 const Error&) {};
};

// This class has more than 25 methods: it forwards every command of the agent to the class that
// handles it.
class EngineHub {
 public:
  using OnRank =
      std::function<void(const std::string& replica, std::uint32_t world_size, RankEvent event)>;
  // Binds the socket, opens the devices and allocates their buffers. Returns kBusy if another
  // sidecar serves the socket.
  [[nodiscard]] static Result<std::unique_ptr<EngineHub>> create(Loop& loop,
                                                                 EngineHubOptions options,
                                                                 OnRank on_rank);
  ~EngineHub();
  EngineHub(const EngineHub&) = delete;
  EngineHub& operator=(const EngineHub&) = delete;

  // What a value of a patch costs the attached ranks that take patches; 0 if none of them does, or
  // patches are not used.
  [[nodiscard]] std::uint32_t patch_value_cost() const;
  // Which ranks are attached, and how they differ from a layout.
  [[nodiscard]] const EngineRegistry& registry() const noexcept { return *registry_; }
  [[nodiscard]] const AbsentEngines& absent() const noexcept { return absent_; }
  // As AbsentEngines::forget(), if AbsentEngines::check_forget() permits it.
  void forget_absent(const std::string& replica);
  // Tells the replicas which of their ranks this version does not fit, if there are any.
  void notify_unfit(const Version& version, const Manifest& manifest);
  // The version can be loaded from now on. `on_ready`, `changes`: see VersionPreparation::add.
  void add_version(const std::shared_ptr<const staging::HeldVersion>& version,
                   std::function<void()> on_ready,
                   const std::shared_ptr<const staging::ReceivedChanges>& changes = nullptr,
                   std::chrono::milliseconds wait = VersionPreparation::kAnswerWait);
  // See VersionPreparation::add_changes.
  void add_changes(const std::shared_ptr<const staging::HeldVersion>& version,
                   std::function<void()> on_ready,
                   const std::shared_ptr<const staging::ReceivedChanges>& changes,
                   std::chrono::milliseconds wait);
  // `is_lent`: see VersionPreparation::remove.
  void remove_version(const Version& version, bool is_lent = false);
  // Whether an attached rank serves from the memory of a version.
  [[nodiscard]] bool serves_from_memory() const;
  // Arenas have been freed, or their writer is gone: engines give up the mappings that they keep.
  void arenas_retired();
  // The patches by which engines could go back are dropped, because a version needs their room.
  void drop_patches_back() { preparation_->patches().drop_back(); }
  // EngineHubOptions::target may return another version now.
  void target_changed() { readers_->advance(); }
  // The highest fence that the sidecar has stored. Messages to engines carry it.
  void set_fence(const control::Fence& fence) { fence_ = fence; }
  [[nodiscard]] const std::string& socket() const noexcept { return options_.socket; }
  // Separate devices and GPUs; nullptr on unified devices.
  [[nodiscard]] const EngineDevices* devices() const noexcept { return devices_.get(); }

  // Executes commands of a replica's switch. A rank that is not attached is skipped.
  void send(const std::string& replica, const reload::SendPause& command);
  void send(const std::string& replica, const reload::BeginLoad& command);
  void send(const std::string& replica, const reload::CancelLoad& command);
  void send(const std::string& replica, const reload::SendCommit& command);
  void send(const std::string& replica, const reload::SendResume& command);
  // Separate devices: while true, the shared run waits, because another replica is about to begin
  // its load.
  void expect_more_loads(bool expected) { loads_->expect_more(expected); }

  // See Readback::begin.
  void verify(std::chrono::milliseconds deadline, Readback::OnDone on_done) {
    readback_.begin(ranks_, deadline, std::move(on_done));
  }

  // Fills in when the memory of these replicas was compared last, and whether they have a
  // controller.
  void add_to(std::vector<control::ReplicaReport>& reports) const;

 private:
  using Ranks = std::vector<std::shared_ptr<EngineRank>>;
  EngineHub(Loop& loop, EngineHubOptions options, OnRank on_rank);
  [[nodiscard]] Result<> open();
  [[nodiscard]] Result<> open_devices();
  void open_scrubbing();
  void accept(UniqueFd socket, pid_t pid);
  // Closes the connections of a rank whose process has ended or, if that cannot be known, is
  // silent, because another process takes its place.
  void drop_dead(const std::string& replica, std::uint32_t rank);
  void check_liveness();
  void disconnect(const std::shared_ptr<EngineRank>& rank, const Error& error);
  // The rank is no longer one of its replica. Does nothing if it was not attached.
  void detach(const std::shared_ptr<EngineRank>& rank, const std::string& why);
  void handle(const std::shared_ptr<EngineRank>& rank, control::Frame frame);
  void handle_starting(const std::shared_ptr<EngineRank>& rank, const control::Envelope& envelope,
                       const control::EngineStarting& starting);
  void handle_hello(const std::shared_ptr<EngineRank>& rank, const control::Envelope& envelope,
                    control::EngineHello hello);
  void handle_reader(const std::shared_ptr<EngineRank>& rank, const control::Envelope& envelope,
                     const control::ReadVersion& question);
  void handle_prepared(const std::shared_ptr<EngineRank>& rank, const control::Prepared& prepared);
  void announce_attached(EngineRank& rank);
  // What of this version does not fit the rank, or its replica if all ranks of that are attached;
  // std::nullopt if it fits.
  [[nodiscard]] std::optional<reload::UnfitVersion> check_fit(EngineRank& rank,
                                                              const Version& version,
                                                              const Manifest& manifest);
  void announce_unprepared(const std::string& replica);
  void handle_loaded(const EngineRank& rank, std::uint64_t request, control::Loaded& loaded);
  [[nodiscard]] std::optional<reload::SumMismatch> check_loaded(const EngineRank& rank,
                                                                control::Loaded& loaded,
                                                                const staging::HeldPatch* patch);
  void refuse(EngineRank& rank, Refusal refusal);
  // Refuses the attached ranks that do not fit the newest version, if another one fits it: which
  // of them attached first makes no difference.
  void refuse_misfits();
  // For a rank of any layout that has declined the version that others serve.
  [[nodiscard]] static Refusal declined_refusal(const EngineRank& rank, const Version& version);
  void absent_changed() const;
  void close_starting(const EngineRank& attached);
  void active_changed();
  void unmap_arenas();
  void send_pause(const std::string& replica, const reload::SendPause& command);
  void send_pauses(const PausePacer::Pauses& pauses);
  [[nodiscard]] std::shared_ptr<EngineRank> find(reload::EngineId id) const;
  [[nodiscard]] std::shared_ptr<EngineRank> find(const std::string& replica,
                                                 std::uint32_t rank) const;
  [[nodiscard]] Ranks attached() const;
  void notify(const std::string& replica, RankEvent event);

  Loop& loop_;
  const EngineHubOptions options_;
  const OnRank on_rank_;
  control::Fence fence_;
  std::set<Version> of_lost_;  // held versions in arenas that were retired, or whose writer is gone
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Ranks ranks_;  // every open connection, including those without a hello yet
  std::uint32_t next_engine_ = 1;
  EngineLiveness liveness_;
  std::map<std::string, Digest> covered_;  // by replica: the last layout that all of its ranks take
  AbsentEngines absent_;
  RefusedProcesses refused_processes_;
  LoadedSums loaded_sums_;
  PausePacer pacer_;
  Timer pacer_timer_;
  std::unique_ptr<EngineDevices> devices_;  // null: unified
  std::unique_ptr<EngineRegistry> registry_;
  std::unique_ptr<VersionPreparation> preparation_;
  std::unique_ptr<LoadDriver> loads_;
  std::unique_ptr<VersionReaders> readers_;
  std::unique_ptr<control::UnixListener> listener_;
  Worker readback_worker_;  // separate, so that plans of a new version do not wait for it
  Readback readback_;
  std::unique_ptr<Scrubbing> scrubbing_;
  Timer liveness_timer_;
  Timer commit_timer_;  // since the last commit; see kResumeWait
};

}  // namespace wsync::agent
