// Ports: the control channel between one coordinator (RouterPort) and its sidecars and commands
// (DealerPort), as seen from the loop. zmq/ implements them.
//
// Messages may be lost when a connection breaks; they are never cut, changed or delivered twice on
// one connection. The protocol above answers losses with deadlines and idempotent commands.
//
// Liveness: each side sends a Heartbeat every interval, with many peers less often
// (heartbeat_pace.h). Anything that arrives shows that the peer lives; silence beyond the deadline
// is a loss.
//
// Keys: a router with keys admits only peers whose key is listed, and everything between it and
// them is encrypted. It judges each message by the key of its connection: the identity that a peer
// has chosen proves nothing. A peer whose key is refused gets no answer to any message.
//
// Thread: the loop's. Callbacks run on the loop, never inside a call to the port; the port may be
//   destroyed inside any of them.
// Outlives: the loop outlives its ports.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/liveness.h"
#include "shared/control/keys/authorized_keys.h"
#include "shared/control/messages.h"

namespace wsync::control {

struct PortTimes {
  std::chrono::milliseconds heartbeat_interval{limits::kHeartbeatIntervalMs};
  std::chrono::milliseconds silence_deadline{limits::kHeartbeatDeadlineMs};
};

struct PortCounters {
  std::uint64_t sent = 0;      // includes heartbeats, like `received`
  std::uint64_t received = 0;  // well-formed messages
  std::uint64_t bad = 0;       // messages that were refused
  std::uint64_t shared = 0;    // of `sent`: with the bytes of an earlier message, which was equal
  // With keys: connections that were refused, and messages that their sender may not send.
  std::uint64_t refused = 0;
};

// Returns the heartbeat to send now. An empty function sends a Heartbeat{} with a zero fence.
using MakeHeartbeat = std::function<std::pair<Envelope, Heartbeat>()>;

struct RouterCallbacks {
  // `peer` is the identity of the dealer. Heartbeats are delivered as well.
  std::function<void(const std::string& peer, Envelope, Message)> on_message;
  // A peer that had sent a message is silent (kDeadline) or has hung up (kPeerLost). The port
  // removes it; a later message adds it again. May be empty.
  std::function<void(const std::string& peer, const Error&)> on_lost;
  // A message was refused and counted. If its version or type was unknown, it was answered with an
  // ErrorReply that echoes its round and request. May be empty.
  std::function<void(const std::string& peer, const Error&)> on_bad_message;
  MakeHeartbeat heartbeat;
  // Another process has taken over the address: it gets all new connections, and this port keeps
  // its existing ones. Called once, within a heartbeat interval. May be empty.
  std::function<void(const std::string& by)> on_address_taken = {};
  // With keys: why the holder of this key may not send the message, or nothing if it may. Called
  // before on_message; a message that is refused gets an ErrorReply with the reason that echoes its
  // round and request. If it is empty, each peer that is admitted may send every message.
  std::function<std::optional<std::string>(const KeyOwner& sender, const Message&)> why_refused =
      {};
  // With keys: a connection or a message was refused and counted. `who`: the holder of the key, or
  // what is known about the connection. May be empty.
  std::function<void(const std::string& who, const Error&)> on_refused = {};
};

class RouterPort {
 public:
  virtual ~RouterPort() = default;
  // kPeerLost: no such peer is connected; kBusy: the peer does not read and its queue is full;
  // kInvalidInput as encode().
  [[nodiscard]] virtual Result<> send(const std::string& peer, const Envelope& envelope,
                                      const Message& message) = 0;
  // Sends a last message to these peers and waits until each has answered it, at most for `limit`.
  // An answer is a message whose envelope has the same request. Everything else that arrives is
  // dropped, and no callback is called, so the port must be destroyed next. Without the wait a peer
  // may lose the message: libzmq drops what was received but not read when a connection ends.
  virtual void say_last(const std::vector<std::string>& last_peers, const Envelope& envelope,
                        const Message& message, std::chrono::milliseconds limit) = 0;
  // Sends no more heartbeats to this peer and does not report its loss until the peer sends again.
  virtual void forget(const std::string& peer) = 0;
  // Lists other keys from now on, on a port with keys. Connections whose key is not listed any
  // more, or belongs to another holder, end at once and are reported to on_lost after this call;
  // all others stay.
  virtual void admit(AuthorizedKeys keys) = 0;
  // The address where the port listens, including the chosen TCP port.
  [[nodiscard]] virtual const std::string& address() const noexcept = 0;
  [[nodiscard]] virtual PortCounters counters() const noexcept = 0;
};

struct DealerCallbacks {
  std::function<void(Envelope, Message)> on_message;
  // The router is reachable, for the first time or again. Alternates with on_lost.
  std::function<void()> on_connected;
  // The router has hung up (kPeerLost) or is silent (kDeadline). The port keeps trying, with a new
  // connection in both cases, because another router may listen at the address by now.
  std::function<void(const Error&)> on_lost;
  std::function<void(const Error&)> on_bad_message;  // may be empty
  MakeHeartbeat heartbeat;
  // The router does not admit this port, or is not the one that it has the key of. The port tries
  // again after a silence deadline. May be empty.
  std::function<void(const Error&)> on_refused = {};
};

class DealerPort {
 public:
  virtual ~DealerPort() = default;
  // kPeerLost: not connected now; kBusy: the router does not read and the queue is full;
  // kInvalidInput as encode().
  [[nodiscard]] virtual Result<> send(const Envelope& envelope, const Message& message) = 0;
  // The identity of this port at the router: "<name>-<16 random hex digits>".
  [[nodiscard]] virtual const std::string& identity() const noexcept = 0;
  // The address that is used or tried now, of those that it was given.
  [[nodiscard]] virtual const std::string& address() const noexcept = 0;
  [[nodiscard]] virtual PortCounters counters() const noexcept = 0;
};

}  // namespace wsync::control
