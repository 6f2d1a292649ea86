// The sidecars of a fleet as far as a coordinator can see them: connections, Hellos, heartbeats and
// answers that come at once. No weights are transferred.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/codec.h"
#include "shared/control/keys/key_file.h"

namespace wsync::bench {

// How the sidecars prove who they are.
struct FleetKeys {
  std::string server_key;               // of the coordinator
  std::vector<control::KeyPair> peers;  // of each sidecar
};
// Name of a sidecar, which its key must have.
[[nodiscard]] std::string peer_name(unsigned index);

struct FleetPeersOptions {
  std::string address;  // of the coordinator; it need not listen yet
  unsigned sidecars = 1;
  unsigned replicas = 8;               // of each sidecar
  std::optional<FleetKeys> keys = {};  // none: the coordinator has no keys
};

// What has passed since FleetPeers::begin().
struct FleetTraffic {
  TimePoint announced{};  // the first Announce of the round has arrived
  TimePoint decided{};    // the last Decide has arrived
  TimePoint switched{};   // the last Switched was sent
  std::uint64_t decides = 0;
  // Of both directions, without heartbeats.
  std::uint64_t messages = 0;
  std::uint64_t heartbeats = 0;  // of both directions
};

// Each sidecar has its own DEALER socket and its own connection; one thread serves all of them.
// Thread: the caller's; all functions may be called while the sidecars run.
class FleetPeers {
 public:
  // kResourceExhausted if this process may not open enough files; errors of ZeroMQ.
  [[nodiscard]] static Result<std::unique_ptr<FleetPeers>> start(FleetPeersOptions options);
  FleetPeers(const FleetPeers&) = delete;
  FleetPeers& operator=(const FleetPeers&) = delete;
  ~FleetPeers();

  // Number of sidecars that the coordinator has accepted under its fence.
  [[nodiscard]] unsigned joined() const noexcept { return joined_.load(); }
  // Forgets the traffic so far.
  void begin();
  [[nodiscard]] FleetTraffic traffic() const;
  // The first error of a sidecar: a refusal of the coordinator, or a message that is malformed.
  [[nodiscard]] Result<> check() const;

 private:
  struct Peer;
  explicit FleetPeers(FleetPeersOptions options);
  [[nodiscard]] Result<> connect();
  void run(const std::stop_token& stop);
  void read_all(Peer& peer);
  void handle(Peer& peer, const control::Decoded& decoded);
  void send(Peer& peer, std::uint64_t round, const control::Message& message);
  void say_hello(Peer& peer);
  void beat(Peer& peer);
  void refuse(const std::string& what);

  const FleetPeersOptions options_;
  struct Sockets;
  std::unique_ptr<Sockets> sockets_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::atomic<unsigned> joined_ = 0;
  mutable std::mutex mutex_;  // guards the two fields below
  FleetTraffic traffic_;
  std::string failure_;
  std::jthread thread_;
};

}  // namespace wsync::bench
