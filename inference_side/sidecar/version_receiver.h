// VersionReceiver: brings versions to this host and lets them go. It takes buckets over TCP into an
// arena of the store, or maps the arena of a trainer on this host; the store verifies every byte;
// then the engines are prepared for the version, and the state machine is told that it is staged.
// Versions that came over TCP are offered to other sidecars (relay).
//
// At most one version arrives at a time.
//
// Thread: the loop's. Transports and the store have threads of their own and post to the loop.
// Outlives: the loop, and everything that the options name, outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/sidecar/offered_layouts.h"
#include "inference_side/sidecar/sidecar_metrics.h"
#include "inference_side/sidecar/switch_trace.h"
#include "inference_side/staging/sidecar.h"
#include "inference_side/staging/store.h"
#include "shared/config/sidecar_config.h"
#include "shared/loop/loop.h"
#include "shared/transport/memfd/memfd_sink.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"

namespace wsync::agent {

struct VersionReceiverOptions {
  const config::SidecarConfig* config = nullptr;
  const OfferedLayouts* layouts = nullptr;
  SwitchTrace* trace = nullptr;
  SidecarMetrics* metrics = nullptr;
  // The fence that the sidecar has stored: under it versions are fetched and offered.
  std::function<const control::Fence&()> fence;
  // Gives an event to the sidecar's state machine; never called inside a call of this class.
  std::function<void(decltype(staging::SidecarEvent::what))> step;
  // A version is complete and verified: prepare the engines, then call `on_ready`.
  std::function<void(const std::shared_ptr<const staging::HeldVersion>&,
                     std::function<void()> on_ready)>
      prepare;
  // A version can be loaded no more.
  std::function<void(const Version&)> forget;
};

// It has more than 25 methods: each transport and each end of a transfer has a method of its own.
class VersionReceiver {
 public:
  // Opens the transports that the configuration allows. Errors as TcpSource::listen.
  [[nodiscard]] static Result<std::unique_ptr<VersionReceiver>> create(
      Loop& loop, VersionReceiverOptions options);
  ~VersionReceiver();
  VersionReceiver(const VersionReceiver&) = delete;
  VersionReceiver& operator=(const VersionReceiver&) = delete;

  [[nodiscard]] staging::Store& store() noexcept { return *store_; }
  [[nodiscard]] const staging::Store& store() const noexcept { return *store_; }
  // Where other sidecars fetch versions from this one; empty without TCP.
  [[nodiscard]] std::string data_address() const;
  // Bytes of the version that is arriving, as far as they are verified; 0 without one.
  [[nodiscard]] std::uint64_t staged_bytes() const;
  // Bytes that came over TCP since the start.
  [[nodiscard]] std::uint64_t received_bytes() const noexcept { return received_bytes_; }

  // Commands of the state machine. StartStaging is answered by StagingDone or StagingFailed,
  // CheckCopy by CopyChecked.
  void start(const staging::StartStaging& command);
  void cancel(const staging::CancelStaging& command);
  void release(const staging::ReleaseVersion& command);
  void check_copy(const staging::CheckCopy& command);
  // A coordinator on this host is connected to: its arenas may be mapped through this socket.
  void connect_host(const std::string& socket);
  // Ends the transports; no bucket arrives afterwards. Before the engines' side goes.
  void stop();

 private:
  // The version that is arriving, until StagingDone has been given.
  struct Arriving {
    std::uint64_t attempt = 0;
    Version version;
    TimePoint begin{};
    TimePoint last_received{};  // of a bucket
    std::vector<bool> have;
    staging::Destination destination;              // own arena only
    bool own = false;                              // it comes over TCP into an arena of the store
    std::optional<staging::StartStaging> waiting;  // for memory
    // Once it is verified, while the engines are prepared for it.
    std::shared_ptr<const staging::HeldVersion> held;
  };
  VersionReceiver(Loop& loop, VersionReceiverOptions options);
  [[nodiscard]] Result<> open();
  [[nodiscard]] Result<> begin(const staging::StartStaging& command);
  [[nodiscard]] Result<> begin_job(const staging::StartStaging& command, bool tcp);
  [[nodiscard]] staging::StagingJob make_job(const control::Announce& announce);
  void memory_ready(Result<staging::Destination> memory);
  [[nodiscard]] Result<> receive(const staging::StartStaging& command);
  [[nodiscard]] Result<> receive_mapped(transport::FetchRequest wanted,
                                        transport::SinkCallbacks callbacks);
  [[nodiscard]] Result<> receive_buckets(const staging::StartStaging& command,
                                         transport::FetchRequest wanted,
                                         transport::SinkCallbacks callbacks);
  void staged(std::uint64_t attempt, Result<std::shared_ptr<const staging::HeldVersion>> held);
  void failed(std::uint64_t attempt, const Error& error);
  void drop_arriving();
  void offer_relay(const staging::StartStaging& command) const;
  void withdraw_relay(const Version& version, const std::string& why);
  [[nodiscard]] transport::StreamKey key_of(const control::Announce& announce) const;

  Loop& loop_;
  const VersionReceiverOptions options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::uint64_t received_bytes_ = 0;
  std::optional<Arriving> arriving_;
  control::Fence host_link_fence_;  // under which the link to the trainer's host socket was made
  std::unique_ptr<transport::tcp::UvThread> bulk_thread_;
  std::unique_ptr<transport::tcp::TcpSource> relay_;  // null: no TCP
  std::unique_ptr<transport::memfd::MemfdSink> memfd_sink_;
  std::unique_ptr<transport::tcp::TcpSink> tcp_sink_;  // null: no TCP
  std::unique_ptr<staging::Store> store_;              // declared last: it reads what sinks write
};

}  // namespace wsync::agent
