#include "bench/control/fleet_peers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <sys/epoll.h>
#include <utility>
#include <zmq.hpp>

#include "shared/base/format.h"
#include "shared/base/liveness.h"
#include "shared/base/open_files.h"
#include "shared/base/unique_fd.h"
#include "shared/control/heartbeat_pace.h"

namespace wsync::bench {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kSpareFiles = 256;  // of this process, besides those of the sidecars
constexpr std::uint64_t kFilesOfPeer = 4;   // a connection and the wake-ups of a socket
constexpr int kEventsAtOnce = 256;
constexpr milliseconds kPace{5};  // between two looks at which heartbeats are due

}  // namespace

std::string peer_name(unsigned index) { return fmt::format("host{:04}", index); }

struct FleetPeers::Peer {
  unsigned index = 0;
  zmq::socket_t socket;
  std::string name;
  control::Fence fence;
  bool joined = false;
  std::uint64_t request = 0;  // of its last Hello
  std::uint64_t sequence = 0;
  TimePoint next_beat{};  // when a heartbeat may be sent
  TimePoint beaten{};     // when the last one was sent
  control::HeartbeatPace pace{control::PortTimes{}};
  Version target;
  std::vector<Version> staged;
  control::Decision decision;
  Digest layout;
  Digest content;
  Digest target_content;
  control::Decision origin;
  std::uint64_t bytes = 0;
  std::vector<control::ReplicaReport> replicas;
};

struct FleetPeers::Sockets {
  zmq::context_t context;
  UniqueFd poll;
};

Result<std::unique_ptr<FleetPeers>> FleetPeers::start(FleetPeersOptions options) {
  WSYNC_TRY(allow_open_files(kSpareFiles + kFilesOfPeer * options.sidecars));
  std::unique_ptr<FleetPeers> made(new FleetPeers(std::move(options)));
  WSYNC_TRY(made->connect());
  made->thread_ =
      std::jthread([peers = made.get()](const std::stop_token& stop) { peers->run(stop); });
  return made;
}

FleetPeers::FleetPeers(FleetPeersOptions options)
    : options_(std::move(options)), sockets_(std::make_unique<Sockets>()) {}

FleetPeers::~FleetPeers() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  peers_.clear();
}

Result<> FleetPeers::connect() {
  sockets_->poll = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!sockets_->poll.valid()) return fail_errno("epoll_create1", errno);
  const TimePoint begin = now();
  try {
    sockets_->context.set(zmq::ctxopt::max_sockets, static_cast<int>(options_.sidecars) + 1);
    for (unsigned i = 0; i < options_.sidecars; ++i) {
      auto peer = std::make_unique<Peer>();
      peer->index = i;
      peer->name = peer_name(i);
      for (unsigned r = 0; r < options_.replicas; ++r)
        peer->replicas.push_back({.replica = fmt::format("{}-replica{}", peer->name, r),
                                  .world_size = 1,
                                  .ranks_attached = 1,
                                  .state = control::ReplicaState::kServing,
                                  .ready = true,
                                  .version = {},
                                  .reason = {}});
      // As independent processes, whose heartbeats are spread over the interval.
      peer->next_beat = begin + milliseconds(limits::kHeartbeatIntervalMs) * i / options_.sidecars;
      peer->socket = zmq::socket_t(sockets_->context, zmq::socket_type::dealer);
      peer->socket.set(zmq::sockopt::linger, 0);
      peer->socket.set(zmq::sockopt::routing_id, fmt::format("{}-{:016x}", peer->name, i + 1));
      if (options_.keys) {
        peer->socket.set(zmq::sockopt::curve_serverkey, options_.keys->server_key);
        peer->socket.set(zmq::sockopt::curve_publickey, options_.keys->peers[i].public_key);
        peer->socket.set(zmq::sockopt::curve_secretkey, options_.keys->peers[i].secret_key);
      }
      peer->socket.connect(options_.address);
      epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.ptr = peer.get()}};
      if (::epoll_ctl(sockets_->poll.get(), EPOLL_CTL_ADD, peer->socket.get(zmq::sockopt::fd),
                      &event) != 0)
        return fail_errno("epoll_ctl", errno);
      peers_.push_back(std::move(peer));
    }
  } catch (const zmq::error_t& error) {
    return fail(ErrorCode::kIo,
                fmt::format("the sockets of {} sidecars: {}", options_.sidecars, error.what()));
  }
  return {};
}

void FleetPeers::begin() {
  const std::scoped_lock lock(mutex_);
  traffic_ = {};
}

FleetTraffic FleetPeers::traffic() const {
  const std::scoped_lock lock(mutex_);
  return traffic_;
}

Result<> FleetPeers::check() const {
  const std::scoped_lock lock(mutex_);
  if (failure_.empty()) return {};
  return fail(ErrorCode::kInternal, failure_);
}

void FleetPeers::refuse(const std::string& what) {
  const std::scoped_lock lock(mutex_);
  if (failure_.empty()) failure_ = what;
}

// ---- the thread ----

void FleetPeers::run(const std::stop_token& stop) {
  for (const auto& peer : peers_) say_hello(*peer);
  std::array<epoll_event, kEventsAtOnce> events{};
  while (!stop.stop_requested()) {
    const int count = ::epoll_wait(sockets_->poll.get(), events.data(), kEventsAtOnce,
                                   static_cast<int>(kPace.count()));
    for (int i = 0; i < count; ++i)
      read_all(*static_cast<Peer*>(events.at(static_cast<std::size_t>(i)).data.ptr));
    const TimePoint at = now();
    for (const auto& peer : peers_) {
      if (at < peer->next_beat) continue;
      peer->next_beat = at + milliseconds(limits::kHeartbeatIntervalMs);
      if (peer->joined && peer->pace.is_due(peer->beaten, at)) beat(*peer);
    }
  }
}

void FleetPeers::read_all(Peer& peer) {
  try {
    zmq::message_t message;
    while (peer.socket.recv(message, zmq::recv_flags::dontwait)) {
      const auto decoded =
          control::decode(std::span(static_cast<const std::byte*>(message.data()), message.size()));
      if (!decoded) return refuse(fmt::format("{}: {}", peer.name, decoded.error().message()));
      handle(peer, *decoded);
    }
  } catch (const zmq::error_t& error) {
    refuse(fmt::format("{}: {}", peer.name, error.what()));
  }
}

void FleetPeers::send(Peer& peer, std::uint64_t round, const control::Message& message) {
  control::Envelope envelope;
  envelope.fence = peer.fence;
  envelope.round = round;
  if (std::holds_alternative<control::Hello>(message)) envelope.request = peer.request;
  const auto bytes = control::encode(envelope, message);
  if (!bytes) return refuse(fmt::format("{}: {}", peer.name, bytes.error().message()));
  try {
    if (!peer.socket.send(zmq::buffer(bytes->data(), bytes->size()), zmq::send_flags::dontwait))
      return refuse(fmt::format("{}: the coordinator does not read", peer.name));
  } catch (const zmq::error_t& error) {
    return refuse(fmt::format("{}: {}", peer.name, error.what()));
  }
  // The wake-up of a socket is edge-triggered, and sending may have consumed it.
  if ((peer.socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) read_all(peer);
  const std::scoped_lock lock(mutex_);
  ++(std::holds_alternative<control::Heartbeat>(message) ? traffic_.heartbeats : traffic_.messages);
}

void FleetPeers::say_hello(Peer& peer) {
  ++peer.request;
  control::Hello hello;
  hello.name = peer.name;
  hello.host = peer.name;
  hello.pid = 1;
  hello.boot_id = peer.name;  // each on its own host, so that versions come by TCP, in a chain
  hello.transports = {{"tcp", fmt::format("tcp://192.0.2.1:{}", 1024 + peer.index)}};
  hello.decision = peer.decision;
  hello.target = peer.target;
  hello.staged = peer.staged;
  hello.replicas = peer.replicas;
  hello.layout = peer.layout;
  hello.target_content = peer.target_content;
  hello.origin = peer.origin;
  send(peer, 0, hello);
}

void FleetPeers::beat(Peer& peer) {
  peer.beaten = now();
  control::Heartbeat heartbeat;
  heartbeat.sequence = ++peer.sequence;
  heartbeat.target = peer.target;
  heartbeat.staged = peer.staged;
  heartbeat.replicas = peer.replicas;
  send(peer, 0, heartbeat);
}

void FleetPeers::handle(Peer& peer, const control::Decoded& decoded) {
  const TimePoint at = now();
  const control::Envelope& envelope = decoded.envelope;
  const bool is_heartbeat = std::holds_alternative<control::Heartbeat>(decoded.message);
  {
    const std::scoped_lock lock(mutex_);
    ++(is_heartbeat ? traffic_.heartbeats : traffic_.messages);
    if (std::holds_alternative<control::Announce>(decoded.message) &&
        traffic_.announced == TimePoint{})
      traffic_.announced = at;
    if (std::holds_alternative<control::Decide>(decoded.message)) {
      ++traffic_.decides;
      traffic_.decided = at;
    }
  }
  if (is_heartbeat) peer.pace.follow(at);
  if (std::holds_alternative<control::Welcome>(decoded.message)) {
    const bool answers = envelope.request == peer.request && envelope.fence == peer.fence;
    if (!answers) {
      peer.fence = envelope.fence;
      return say_hello(peer);
    }
    if (!std::exchange(peer.joined, true)) ++joined_;
  } else if (const auto* announce = std::get_if<control::Announce>(&decoded.message)) {
    peer.content = announce->content_digest;
    peer.bytes = announce->arena_bytes;
    peer.layout = announce->layout_digest;
    send(peer, envelope.round, control::Accept{.version = announce->version});
  } else if (const auto* stage = std::get_if<control::Stage>(&decoded.message)) {
    if (stage->content_digest != Digest{}) peer.content = stage->content_digest;
    if (peer.content == Digest{}) return;  // the snapshot is not complete: another Stage follows
    peer.staged.push_back(stage->version);
    if (peer.staged.size() > 2) peer.staged.erase(peer.staged.begin());
    send(peer, envelope.round,
         control::Staged{.version = stage->version,
                         .content_digest = peer.content,
                         .bytes = peer.bytes,
                         .staging_ns = 1,
                         .failure = {}});
  } else if (const auto* decide = std::get_if<control::Decide>(&decoded.message)) {
    peer.decision = {.fence = envelope.fence, .number = decide->number};
    peer.target = decide->target;
    peer.target_content = decide->content_digest;
    peer.origin = decide->origin;
    send(peer, envelope.round,
         control::Decided{.number = decide->number, .refused = false, .reason = {}});
    control::Switched switched;
    switched.number = decide->number;
    switched.target = decide->target;
    for (control::ReplicaReport& replica : peer.replicas) {
      replica.version = decide->target;
      switched.outcomes.push_back({.replica = replica.replica,
                                   .outcome = control::SwitchOutcome::kCommitted,
                                   .version = decide->target,
                                   .reason = {},
                                   .bytes = peer.bytes});
    }
    send(peer, envelope.round, switched);
    const std::scoped_lock lock(mutex_);
    traffic_.switched = now();
  } else if (const auto* error = std::get_if<control::ErrorReply>(&decoded.message)) {
    refuse(fmt::format("{}: {}", peer.name, error->message));
  } else if (const auto* abort = std::get_if<control::Abort>(&decoded.message)) {
    refuse(fmt::format("{}: the round was aborted: {}", peer.name, abort->reason));
  }
}

}  // namespace wsync::bench
