// EngineDevices: the separate devices or GPUs of a sidecar. It opens them, runs the weight pipeline
// on them, and executes the decisions of DeviceBuffers: allocating, exporting and freeing the IPC
// buffers, and reconnecting GPUs whose streams and communicators were destroyed by a failed run.
//
// Thread: the loop's. Blocking work runs on a separate thread. Callbacks are called on the loop,
// never inside a call. The loop must outlive this object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/pipeline_runner.h"
#include "inference_side/sidecar/device_buffers.h"
#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/sidecar/engine_registry.h"
#include "shared/config/devices_config.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::agent {

struct EngineDevicesOptions {
  config::DevicesConfig config;
  Stages stages = Stages::kAuto;
  std::uint64_t generation = 0;      // of this sidecar process; part of each GPU buffer handle
  trace::Recorder* trace = nullptr;  // may be null; outlives the devices
};

// All are required.
struct EngineDevicesCallbacks {
  std::function<void(const reload::BucketReady&)> on_bucket_ready;
  std::function<void(const reload::LostEngine&)> on_engine_dropped;
  std::function<void(const Result<reload::PipelineReport>&)> on_run_finished;
  std::function<void(const Result<>&)> on_connected;
  std::function<void(const Result<>&)> on_allocated;
  // An attempt to free the buffers has ended. A load may have requested them meanwhile.
  std::function<void()> on_freed;
  // An engine that had mapped the buffers is gone: call free_unused().
  std::function<void()> on_unmapped;
};

// This class has more than 25 methods: each callback of the pipeline and each command of
// DeviceBuffers has its own.
class EngineDevices {
 public:
  // Opens the devices, and allocates their buffers if they are kept. Errors as
  // PipelineRunner::create.
  [[nodiscard]] static Result<std::unique_ptr<EngineDevices>> open(
      Loop& loop, EngineDevicesOptions options, EngineDevicesCallbacks callbacks);
  // Call stop_runs() first.
  ~EngineDevices();
  EngineDevices(const EngineDevices&) = delete;
  EngineDevices& operator=(const EngineDevices&) = delete;

  [[nodiscard]] bool on_gpus() const noexcept;
  [[nodiscard]] const reload::DeviceGroup& group() const noexcept { return runner_->group(); }
  [[nodiscard]] reload::DeviceCopies copies() const noexcept { return runner_->copies(); }
  // NUMA node shared by all GPUs; std::nullopt if they span nodes, on host devices, or if unknown.
  [[nodiscard]] std::optional<std::uint32_t> numa_node() const;
  [[nodiscard]] RegistryDevices registry_devices() const;

  // ---- runs ----

  // Begins a run, or returns the reason why it cannot begin. on_run_finished is called only after a
  // success.
  [[nodiscard]] Result<> start_run(reload::PipelineJob job);
  void handle_bucket_ack(reload::EngineId engine, std::uint64_t bucket) {
    runner_->handle_bucket_ack(engine, bucket);
  }
  void engine_lost(reload::EngineId engine, const Error& reason) {
    runner_->engine_lost(engine, reason);
  }

  // ---- streams, communicators and buffers ----

  // Host devices always count as connected, because each run connects them itself.
  [[nodiscard]] bool connected() const noexcept;
  [[nodiscard]] bool connecting() const noexcept { return buffers_.connecting(); }
  // Reconnects GPUs that a failed run has disconnected. Call it after each run, and whenever the
  // GPUs are needed. Does nothing if they are connected or a run is in progress.
  void connect();
  [[nodiscard]] bool buffers_held() const noexcept { return buffers_.held(); }
  // Allocates buffers that are not kept. Does nothing if they exist, or while they are being
  // allocated or freed.
  void allocate();
  // Frees buffers that are not kept, as soon as no connected engine has them mapped. `in_use`: a
  // load needs them.
  void free_unused(bool in_use);
  [[nodiscard]] bool keeps_buffers() const noexcept { return buffers_.kept(); }

  // The IPC buffers of a rank's device: a file descriptor for each, and a handle for each on GPUs.
  // `request`: the Load that carries them; std::nullopt for a welcome.
  struct Exported {
    std::vector<UniqueFd> fds;
    std::vector<control::BufferHandle> handles;
  };
  [[nodiscard]] Result<Exported> export_buffers(const EngineRank& rank, std::uint32_t device,
                                                std::optional<std::uint64_t> request);
  // The rank has answered the Load of this request, so it has unmapped the buffers of that load.
  void answered(reload::EngineId engine, std::uint64_t request);
  // The rank's connection has ended.
  void disconnected(const EngineRank& rank);

  // Ends the run in progress and waits for its end. Nothing reads the staged bytes afterwards.
  void stop_runs();

 private:
  class Events;
  EngineDevices(Loop& loop, EngineDevicesOptions options, EngineDevicesCallbacks callbacks);
  [[nodiscard]] Result<> open_runner();
  void connect_finished(const Result<>& outcome);
  void allocate_finished(const Result<>& outcome);
  void free_finished(const Result<>& outcome);
  void check(const Result<>& moved) const;

  Loop& loop_;
  const EngineDevicesOptions options_;
  const EngineDevicesCallbacks callbacks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  DeviceBuffers buffers_;
  std::string connect_failure_;  // already logged
  std::unique_ptr<reload::PipelineListener> events_;
  std::unique_ptr<reload::PipelineRunner> runner_;
  Worker worker_;  // allocates, frees and connects, one task at a time
};

}  // namespace wsync::agent
