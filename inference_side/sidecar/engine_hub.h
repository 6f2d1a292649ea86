// EngineHub: the sidecar's side of its engine links. It knows every attached rank, prepares staged
// versions for them, carries the switch's commands to them and their answers back, and runs the
// weight pipeline over separate devices.
//
// Unified devices: a rank maps the staged version itself; Load hands it the whole bucket list at
// once. Separate devices and GPUs: all replicas of one decision share a run of the pipeline; it
// starts when none of them is still pausing. GPUs have one rank each; where their buffers are not
// kept they are there from the first Load of a run until every rank that got them has answered
// Loaded, or is gone. What a failed run has taken down on GPUs is made anew right after it, and at
// the latest before a Load is sent: where that fails, no load begins.
//
// Thread: the loop's; callbacks come on the loop, never inside a call.
// Outlives: the loop outlives the hub.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "inference_side/reload/pipeline_runner.h"
#include "inference_side/reload/replica_switch.h"
#include "inference_side/sidecar/device_staging.h"
#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/sidecar/load_cache.h"
#include "inference_side/sidecar/readback.h"
#include "inference_side/staging/receive_round.h"
#include "inference_side/staging/store.h"
#include "shared/config/devices_config.h"
#include "shared/control/unix_stream.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::agent {

using RankEvent = staging::RankEvent;

struct EngineHubOptions {
  std::string socket;  // path of the Unix socket for engines
  config::DevicesConfig devices;
  Stages stages = Stages::kAuto;
  std::uint64_t generation = 0;      // of this sidecar process
  trace::Recorder* trace = nullptr;  // may be null; outlives the hub
};

class EngineHub {
 public:
  using OnRank =
      std::function<void(const std::string& replica, std::uint32_t world_size, RankEvent event)>;
  // Binds the socket, opens the devices and makes their buffers. kBusy: another sidecar serves the
  // socket.
  [[nodiscard]] static Result<std::unique_ptr<EngineHub>> create(Loop& loop,
                                                                 EngineHubOptions options,
                                                                 OnRank on_rank);
  ~EngineHub();
  EngineHub(const EngineHub&) = delete;
  EngineHub& operator=(const EngineHub&) = delete;

  // What does not fit between a layout and the attached engines, each problem naming its replica.
  [[nodiscard]] std::vector<control::Problem> check_layout(const Manifest& manifest) const;
  // Replicas that have a rank attached.
  [[nodiscard]] std::uint32_t replica_count() const;
  // A version can be loaded from here on: every rank is told to get ready for it. `on_ready` when
  // the devices are ready for it (DeviceStaging) and every rank that is attached now has answered,
  // is gone, or was given up a few seconds after it was told, so that a pause does not begin with
  // what could be done before it.
  void add_version(std::shared_ptr<const staging::HeldVersion> version,
                   std::function<void()> on_ready);
  void remove_version(const Version& version);
  // The highest fence that the sidecar has stored; messages to engines carry it, and an engine that
  // has obeyed a higher one is refused: this sidecar has been replaced, or has lost its record.
  void set_fence(const control::Fence& fence) { fence_ = fence; }
  [[nodiscard]] const std::string& socket() const noexcept { return options_.socket; }
  // That all its GPUs are on; nothing for several, for host devices, and where nobody knows.
  [[nodiscard]] std::optional<std::uint32_t> numa_node() const;
  // Separate devices and GPUs; null on unified ones.
  [[nodiscard]] const reload::DeviceGroup* devices() const noexcept {
    return runner_ ? &runner_->group() : nullptr;
  }
  // Nothing on unified ones.
  [[nodiscard]] reload::DeviceCopies device_copies() const {
    return runner_ ? runner_->copies() : reload::DeviceCopies{};
  }

  // Commands of a replica's switch. A rank that is not attached is passed over.
  void send(const std::string& replica, const reload::SendPause& command);
  void send(const std::string& replica, const reload::BeginLoad& command);
  void send(const std::string& replica, const reload::CancelLoad& command);
  void send(const std::string& replica, const reload::SendCommit& command);
  void send(const std::string& replica, const reload::SendResume& command);
  // Separate devices: while true, another replica is about to begin its load: the shared run waits.
  void expect_more_loads(bool expected);

  // See Readback::begin.
  void verify(std::chrono::milliseconds deadline, Readback::OnDone on_done) {
    readback_->begin(ranks_, deadline, std::move(on_done));
  }

 private:
  using Rank = EngineRank;
  struct Load {
    std::uint64_t request = 0;
    Version version;
    std::uint32_t deadline_ms = 0;
    bool begun = false;
    bool waits_for_buffers = false;
    bool waits_for_devices = false;
  };
  // Who has not answered yet that it is ready for a version.
  struct Preparation {
    std::vector<std::shared_ptr<Rank>> waiting;
    bool devices_ready = false;
    std::function<void()> on_ready;
    std::unique_ptr<Timer> deadline;
  };
  // Of GPUs whose buffers are not kept.
  enum class Buffers : std::uint8_t { kNone, kAllocating, kHeld, kFreeing };
  class PipelineEvents;
  EngineHub(Loop& loop, EngineHubOptions options, OnRank on_rank);
  [[nodiscard]] Result<> open();
  [[nodiscard]] Result<> open_devices();
  [[nodiscard]] Result<> open_pipeline();
  void make_pipeline_events();
  void log_devices() const;
  void on_connection(UniqueFd socket);
  void on_frame(const std::shared_ptr<Rank>& rank, control::Frame frame);
  void on_close(const std::shared_ptr<Rank>& rank, const Error& error);
  void on_hello(const std::shared_ptr<Rank>& rank, const control::Envelope& envelope,
                control::EngineHello hello);
  void on_prepared(const std::shared_ptr<Rank>& rank, const control::Prepared& prepared);
  void on_loaded(const std::shared_ptr<Rank>& rank, const control::Envelope& envelope,
                 const control::Loaded& loaded);
  void refuse(const std::shared_ptr<Rank>& rank, const std::string& why,
              std::vector<control::Problem> problems = {});
  // Why a rank cannot be taken; empty when it can.
  [[nodiscard]] std::string rank_problem(const control::Envelope& envelope,
                                         const control::EngineHello& hello) const;
  [[nodiscard]] std::string device_problem(const control::EngineHello& hello) const;
  [[nodiscard]] std::string gpu_problem(const control::EngineHello& hello) const;
  // The IPC buffers of a device: descriptors of separate ones, handles of GPUs.
  struct DeviceBuffers {
    std::vector<UniqueFd> fds;
    std::vector<control::BufferHandle> handles;
  };
  [[nodiscard]] Result<DeviceBuffers> device_buffers(std::uint32_t device) const;
  [[nodiscard]] bool on_gpus() const noexcept;
  [[nodiscard]] bool keeps_buffers() const noexcept;
  [[nodiscard]] std::shared_ptr<Rank> find(const std::string& replica, std::uint32_t rank) const;
  [[nodiscard]] std::vector<std::shared_ptr<Rank>> ranks_of(const std::string& replica) const;
  [[nodiscard]] std::uint32_t copy_threads() const;
  void give_up_silent(const Version& version);
  void devices_ready(const Version& version);
  void prepared_or_gone(const std::shared_ptr<Rank>& rank, const Version* version);
  void prepare(const std::shared_ptr<Rank>& rank,
               const std::shared_ptr<const staging::HeldVersion>& version);
  void send_prepare(const std::shared_ptr<Rank>& rank,
                    const std::shared_ptr<const staging::HeldVersion>& version,
                    const std::shared_ptr<const PreparedLoad>& load);
  void tell(const Rank& rank, RankEvent event);
  void load_failed(const Rank& rank, std::uint64_t request, const Version& version,
                   const std::string& why);
  void pump_load(const std::string& replica);
  void pump_loads();
  void load_not_begun(const std::string& replica, const std::string& why);
  [[nodiscard]] bool ready_to_load(const Load& load,
                                   const std::vector<std::shared_ptr<Rank>>& ranks);
  void send_load(const Load& load, const std::shared_ptr<Rank>& rank);
  // ---- GPUs whose streams and communicators a failed run has taken down ----
  void connect_devices();
  [[nodiscard]] bool devices_connected(Load& load);
  void devices_connected(const Result<>& outcome);
  // ---- buffers that are not kept ----
  [[nodiscard]] bool buffers_ready(Load& load);
  void buffers_allocated(const Result<>& outcome);
  void free_unused_buffers();
  void unmapped_when_closed(EngineRank& rank);
  void wait_for_unmapping();
  void drop_loads_without_version();
  void start_pipeline();
  void on_pipeline_finished(const Result<reload::PipelineReport>& result);

  Loop& loop_;
  EngineHubOptions options_;
  OnRank on_rank_;
  control::Fence fence_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<ThreadPool> digest_threads_;  // GPUs only
  std::unique_ptr<reload::PipelineListener> pipeline_events_;
  std::unique_ptr<reload::PipelineRunner> runner_;  // null: unified devices
  std::unique_ptr<DeviceStaging> device_staging_;   // null: unified devices
  std::unique_ptr<Worker> buffers_worker_;          // allocates, frees and connects
  bool connecting_ = false;                         // no run begins meanwhile
  std::string devices_failure_;                     // said already
  Buffers buffers_ = Buffers::kNone;
  std::vector<UniqueFd> departing_;  // of ranks that were dropped with buffers mapped
  std::unique_ptr<Timer> departing_timer_;
  std::unique_ptr<control::UnixListener> listener_;
  std::unique_ptr<Worker> worker_;
  std::shared_ptr<LoadCache> cache_;
  std::vector<std::shared_ptr<Rank>> ranks_;
  std::map<Version, std::shared_ptr<const staging::HeldVersion>> versions_;
  std::map<Version, std::unique_ptr<Preparation>> preparing_;
  std::map<std::string, Load> loads_;  // by replica
  std::vector<std::string> queued_;    // replicas that wait for the pipeline
  bool more_expected_ = false;
  std::vector<std::shared_ptr<Rank>> running_;  // in the run in progress
  std::shared_ptr<const staging::HeldVersion> running_version_;
  std::unique_ptr<Worker> readback_worker_;  // of its own: a new version's plans do not wait for it
  std::unique_ptr<Readback> readback_;
  std::uint32_t next_engine_ = 1;
};

}  // namespace wsync::agent
