// A ZeroMQ socket with its own context: closing one waits until its files are gone. Only this
// folder uses it.
//
// Thread: the loop's.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <zmq.h>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/control/port.h"
#include "shared/control/zmq/address.h"

namespace wsync::control {

// What a port takes in one turn of its loop; then others get theirs.
inline constexpr int kMessagesPerTurn = 128;

// Between two ticks of a port: more than this, and its process has stood still.
[[nodiscard]] inline std::chrono::milliseconds late_tick(const PortTimes& times) {
  return times.heartbeat_interval + times.silence_deadline / 2;
}

// One part of a received message.
class Part {
 public:
  Part() noexcept { zmq_msg_init(&message_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() { zmq_msg_close(&message_); }
  [[nodiscard]] std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  [[nodiscard]] std::string text() {
    return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  [[nodiscard]] zmq_msg_t* raw() noexcept { return &message_; }

 private:
  zmq_msg_t message_{};
};

// A DEALER's connection came up or went down.
enum class ConnectionEvent : std::uint8_t { kUp, kDown };

class Socket {
 public:
  // `type` is ZMQ_ROUTER or ZMQ_DEALER; `identity` is a dealer's, empty for a router.
  [[nodiscard]] static Result<std::unique_ptr<Socket>> create(int type,
                                                              const std::string& identity);
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  // kBusy when the address is in use.
  [[nodiscard]] Result<> bind(const PortAddress& address);
  [[nodiscard]] Result<> connect(const PortAddress& address);
  // Gives up what connect() has made, with all that is queued in it, and begins anew.
  [[nodiscard]] Result<> connect_again(const PortAddress& address);
  // The endpoint that bind() has chosen.
  [[nodiscard]] std::string last_endpoint() const;

  // Reports connections through monitor_fd() and next_connection_event(). Before connect().
  [[nodiscard]] Result<> watch_connections();
  [[nodiscard]] int monitor_fd() const;
  [[nodiscard]] std::optional<ConnectionEvent> next_connection_event();

  // How long the destructor may wait for what was sent last to leave this process; 0 at first. It
  // waits only while the peer's end takes nothing.
  void wait_at_close(std::chrono::milliseconds time);

  // `route`: the peer's identity for a router, empty for a dealer. kBusy, kPeerLost.
  [[nodiscard]] Result<> send(const std::string& route, std::span<const std::byte> bytes);
  // One message: all its parts, of which at most `parts.size()` are kept. The number of parts; 0:
  // nothing has arrived.
  [[nodiscard]] std::size_t receive(std::span<Part> parts);
  // Readable after something has happened, but only once: receive until 0, and again after each
  // send (ZMQ_FD is edge-triggered).
  [[nodiscard]] int fd() const;

 private:
  struct CloseSocket {
    void operator()(void* socket) const { zmq_close(socket); }
  };
  struct CloseContext {
    void operator()(void* context) const { zmq_ctx_term(context); }
  };
  Socket() = default;
  [[nodiscard]] Result<> watch(int events);
  std::unique_ptr<void, CloseContext> context_;
  std::unique_ptr<void, CloseSocket> socket_;
  std::unique_ptr<void, CloseSocket> monitor_;
  UniqueFd listening_;  // a duplicate, by which a forked child knows ZeroMQ's (fork_guard.h)
};

}  // namespace wsync::control
