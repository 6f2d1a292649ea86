// SidecarAgent: the inference-side agent of one host. It connects the sidecar's state machine
// (staging/sidecar.h) with the coordinator's port, the arriving versions (VersionReceiver), the
// engines (EngineHub), and commands, metrics and the trace.
//
// Thread: the loop's. The loop must outlive the agent.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "inference_side/sidecar/engine_hub.h"
#include "inference_side/sidecar/offered_layouts.h"
#include "inference_side/sidecar/sidecar_metrics.h"
#include "inference_side/sidecar/switch_log.h"
#include "inference_side/sidecar/switch_trace.h"
#include "inference_side/sidecar/version_receiver.h"
#include "inference_side/staging/sidecar.h"
#include "shared/base/unix_socket.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/metrics/status_pages.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::agent {

// Path of the socket on which a sidecar of this name listens for engines, for `wsync status` and
// for `wsync verify`.
[[nodiscard]] std::string engine_socket_path(const std::string& run_dir, const std::string& name);
[[nodiscard]] std::string sidecar_address(const std::string& run_dir, const std::string& name);

// This class has more than 25 methods: each command of Sidecar has an overload of execute().
class SidecarAgent {
 public:
  // Reads the record of an earlier run and starts to connect to the coordinator. Returns kBusy if
  // another sidecar of this name runs here, or if another process listens at http.address.
  [[nodiscard]] static Result<std::unique_ptr<SidecarAgent>> create(
      Loop& loop, const config::SidecarConfig& config);
  ~SidecarAgent();
  SidecarAgent(const SidecarAgent&) = delete;
  SidecarAgent& operator=(const SidecarAgent&) = delete;

  [[nodiscard]] const std::string& engine_socket() const noexcept { return hub_->socket(); }
  // The last call before the destructor. Sends its replicas and Leave to the coordinator. If no
  // engine is attached, nobody waits for this sidecar any more, and it returns true. If an engine
  // is attached, it returns false: the engine keeps serving without a sidecar, so this sidecar
  // still owes every decision and is expected to return.
  bool leave();
  // The latest spans, even if no trace file is written.
  [[nodiscard]] const trace::Recorder& trace() const noexcept { return trace_; }

 private:
  SidecarAgent(Loop& loop, const config::SidecarConfig& config, staging::SidecarRecord record);
  [[nodiscard]] Result<> open();
  [[nodiscard]] PatchOptions patch_options();
  [[nodiscard]] Result<> connect();
  [[nodiscard]] Result<> open_pages();
  [[nodiscard]] std::pair<control::Envelope, control::Heartbeat> heartbeat();
  // What the hub knows of the engines, in the reports of the state machine.
  void add_engines(std::vector<control::ReplicaReport>& reports) const;
  // The same message; a Hello or a Switched also says what is known of engines that are absent.
  [[nodiscard]] control::Message with_engines(control::Message message) const;
  // Borrows this object.
  [[nodiscard]] MissingOf missing_ranks() const;
  void step(decltype(staging::SidecarEvent::what) what);
  void execute(const staging::Reply& command);
  void execute(const staging::Welcomed& command);
  void execute(const staging::ForReplica& command);
  void execute(const staging::Persist& command);
  void execute(const staging::CheckLayout& command);
  void execute(const staging::StartStaging& command);
  void execute(const staging::ExpectContent& command);
  void execute(const staging::CancelStaging& command);
  void execute(const staging::ReleaseVersion& command);
  void execute(const staging::BeatNow& command);
  void execute(const staging::CompleteVersion& command);
  void execute(const staging::CheckCopy& command);
  void execute(const staging::RelayHeld& command);
  void execute(const staging::ReplicaForgotten& command);
  using Reply = std::function<void(control::Message)>;
  [[nodiscard]] control::ForgetReply forget(const control::Forget& what);
  [[nodiscard]] bool answer(const control::Message& question, const Reply& reply);
  void handle(control::Envelope envelope, control::Message message);
  void handle_command(const std::string& peer, const control::Envelope& envelope,
                      const control::Message& message);
  void handle_rank(const std::string& replica, std::uint32_t world_size, RankEvent event);

  Loop& loop_;
  const config::SidecarConfig config_;
  staging::SidecarOptions options_;
  const staging::SidecarRecord record_;  // as it was when this process started
  trace::Recorder trace_;
  SwitchTrace switch_trace_;
  SwitchLog switch_log_;
  SidecarMetrics metrics_;
  std::optional<staging::Sidecar> sidecar_;  // created when its data address is known
  std::optional<LockFile> state_lock_;
  std::filesystem::path record_file_;
  std::unique_ptr<Worker> worker_;  // writes the record
  OfferedLayouts layouts_;
  std::unique_ptr<VersionReceiver> receiver_;
  std::unique_ptr<EngineHub> hub_;
  // Size of the devices' buffers, kept for the trace, which is written after the hub is destroyed.
  std::uint64_t buffer_bytes_ = 0;
  std::unique_ptr<control::DealerPort> dealer_;
  std::unique_ptr<control::RouterPort> router_;  // for commands
  Timer timer_;
  std::uint64_t heartbeats_ = 0;
  bool coordinator_left_ = false;  // in order; set until the next one connects
  std::string refusal_;  // why the coordinator does not admit this sidecar, as logged last
  // Why no version can come from this trainer; empty: a transport is in common, or none has
  // welcomed this sidecar.
  std::string no_transport_;
  control::Stage source_;  // the last one: from where and by which kind it stages, without the key
  std::string transport_;  // by which versions come from this trainer; empty: none is known
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<metrics::StatusPages> pages_;  // null: http.address is none
};

}  // namespace wsync::agent
