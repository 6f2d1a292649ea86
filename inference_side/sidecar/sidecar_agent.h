// SidecarAgent: the inference-side agent of one host. It joins the sidecar's state machine
// (receive_round.h) to the control port, the store and its transports, and the engines.
//
// Thread: the loop's.
// Outlives: the loop outlives the agent.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inference_side/sidecar/engine_hub.h"
#include "inference_side/sidecar/sidecar_metrics.h"
#include "inference_side/sidecar/switch_trace.h"
#include "inference_side/staging/receive_round.h"
#include "inference_side/staging/store.h"
#include "shared/base/unix_socket.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/metrics/status_pages.h"
#include "shared/observe/trace/recorder.h"
#include "shared/transport/memfd/memfd_sink.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"

namespace wsync::agent {

// Where a sidecar of this name listens for engines, and for `wsync status` and `wsync verify`.
[[nodiscard]] std::string engine_socket_path(const std::string& run_dir, const std::string& name);
[[nodiscard]] std::string sidecar_address(const std::string& run_dir, const std::string& name);

class SidecarAgent {
 public:
  // Reads the record of an earlier run and begins to look for the coordinator. kBusy: another
  // sidecar of this name runs here, or somebody listens at http.address.
  [[nodiscard]] static Result<std::unique_ptr<SidecarAgent>> create(
      Loop& loop, const config::SidecarConfig& config);
  ~SidecarAgent();
  SidecarAgent(const SidecarAgent&) = delete;
  SidecarAgent& operator=(const SidecarAgent&) = delete;

  [[nodiscard]] const std::string& engine_socket() const noexcept { return hub_->socket(); }
  // The last call before this object goes: says goodbye to the coordinator where no engine is
  // attached, so that nobody waits for this sidecar. Engines go on serving without it: with one
  // attached it is still owed every decision, and only comes back. Returns whether it said so.
  bool leave();
  // What was traced so far: the latest spans, whether they are written to a file or not.
  [[nodiscard]] const trace::Recorder& trace() const noexcept { return trace_; }

 private:
  // A layout that was offered and fits.
  struct Layout {
    std::shared_ptr<const Manifest> manifest;
    std::shared_ptr<const BucketPlan> plan;
  };
  // The version that is arriving: until StagingDone has been given.
  struct Arriving {
    std::uint64_t attempt = 0;
    Version version;
    TimePoint begin{};
    TimePoint last_received{};  // of a bucket
    std::vector<bool> have;
    staging::Destination destination;  // own arena only
    bool own = false;
    std::optional<staging::StartStaging> waiting;  // for memory
    // Once it is verified, while the engines get ready for it.
    std::shared_ptr<const staging::HeldVersion> held;
  };
  SidecarAgent(Loop& loop, const config::SidecarConfig& config, staging::SidecarRecord record);
  [[nodiscard]] Result<> open();
  [[nodiscard]] Result<> connect();
  [[nodiscard]] Result<> open_pages();
  [[nodiscard]] std::pair<control::Envelope, control::Heartbeat> heartbeat();
  void step(decltype(staging::SidecarEvent::what) what);
  void carry_out(const staging::Reply& command);
  void carry_out(const staging::Welcomed& command);
  void carry_out(const staging::ForReplica& command);
  void carry_out(const staging::Persist& command);
  void carry_out(const staging::CheckLayout& command);
  void carry_out(const staging::StartStaging& command);
  void carry_out(const staging::CancelStaging& command);
  void carry_out(const staging::ReleaseVersion& command);
  void carry_out(const staging::BeatNow& command);
  void carry_out(const staging::CheckCopy& command);
  [[nodiscard]] staging::LayoutChecked check(const staging::CheckLayout& command);
  [[nodiscard]] Result<> begin_staging(const staging::StartStaging& command);
  void on_memory(Result<staging::Destination> memory);
  void offer_relay(const staging::StartStaging& command) const;
  [[nodiscard]] Result<> receive(const staging::StartStaging& command);
  [[nodiscard]] transport::StreamKey key_of(const control::Announce& announce) const;
  void on_staged(std::uint64_t attempt, Result<std::shared_ptr<const staging::HeldVersion>> held);
  void drop_arriving();
  void staging_failed(std::uint64_t attempt, const Error& error);
  void on_message(control::Envelope envelope, control::Message message);
  void on_command(const std::string& peer, const control::Envelope& envelope,
                  const control::Message& message);
  void relay_withdraw(const Version& version, const std::string& why);
  // `received`: when the question came.
  [[nodiscard]] control::TraceAnswer trace_answer(const control::TraceQuestion& question,
                                                  TimePoint received) const;
  void write_trace() const;

  Loop& loop_;
  const config::SidecarConfig config_;
  staging::SidecarOptions options_;
  const staging::SidecarRecord record_;  // as it was when this process began
  std::uint64_t received_bytes_ = 0;     // over TCP
  trace::Recorder trace_;
  SwitchTrace switch_trace_;
  SidecarMetrics metrics_;
  std::optional<staging::Sidecar> sidecar_;  // made when its addresses are known
  std::optional<LockFile> state_lock_;
  std::filesystem::path record_file_;
  std::unique_ptr<Worker> worker_;  // writes the record
  std::unique_ptr<staging::Store> store_;
  std::unique_ptr<EngineHub> hub_;
  std::uint64_t buffer_bytes_ = 0;  // of its devices; for the picture, when the hub is gone
  std::unique_ptr<transport::tcp::UvThread> bulk_thread_;
  std::unique_ptr<transport::tcp::TcpSource> relay_;
  std::unique_ptr<transport::memfd::MemfdSink> memfd_sink_;
  std::unique_ptr<transport::tcp::TcpSink> tcp_sink_;
  std::unique_ptr<control::DealerPort> dealer_;
  std::unique_ptr<control::RouterPort> router_;  // for commands
  Timer timer_;
  std::map<Digest, Layout> layouts_;
  std::optional<Arriving> arriving_;
  std::uint64_t heartbeats_ = 0;
  control::Fence host_link_fence_;  // under which the trainer's host link was made
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<metrics::StatusPages> pages_;  // null: http.address is none
};

}  // namespace wsync::agent
