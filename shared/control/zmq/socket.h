// A ZeroMQ socket with its own context. With a context per socket, closing the socket waits until
// its files are removed. Only this folder uses it.
//
// Thread: the loop's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <zmq.h>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/port.h"
#include "shared/control/zmq/address.h"

namespace wsync::control {

// Messages that a port receives per loop iteration, so that other work of the loop is not delayed.
inline constexpr int kMessagesPerTurn = 128;
// How long a port that closes waits until its last message has left this process.
inline constexpr std::chrono::milliseconds kLastMessage{100};

// If the time between two ticks of a port exceeds this value, its process was suspended or its loop
// was blocked.
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
  // What the answer to the question about the key of its sender has named: the public half. Empty
  // for a connection without keys.
  [[nodiscard]] std::string user() const;
  // The descriptor of the connection that it came from, which may be closed by now; -1 if unknown.
  [[nodiscard]] int connection_fd() const;
  [[nodiscard]] zmq_msg_t* raw() noexcept { return &message_; }

 private:
  zmq_msg_t message_{};
};

// A message that is sent to several peers without being copied for each of them.
class SharedPart {
 public:
  explicit SharedPart(Bytes bytes);
  SharedPart(const SharedPart&) = delete;
  SharedPart& operator=(const SharedPart&) = delete;
  ~SharedPart() { zmq_msg_close(&message_); }
  [[nodiscard]] zmq_msg_t* raw() noexcept { return &message_; }

 private:
  zmq_msg_t message_{};
};

// What has become of a connection.
enum class ConnectionEvent : std::uint8_t {
  kUp,
  kDown,
  kKeyRefused,   // of a dealer: the router does not list its key
  kOtherKind,    // one side has keys and the other has none
  kWrongServer,  // of a router: the dealer expected a server with another key
  kBroken,       // it ended before its handshake did, or the peer speaks another protocol
  kNotTaken,     // of a dealer: nobody takes the connection; it is tried again
};

class Socket {
 public:
  // `type` is ZMQ_ROUTER or ZMQ_DEALER. `identity` is the dealer's; empty for a router.
  [[nodiscard]] static Result<std::unique_ptr<Socket>> create(int type,
                                                              const std::string& identity);
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  // Makes this router a server with keys, whose secret half (Z85) this is. From then on no
  // connection is admitted before answer_key_question() has admitted its key, and
  // next_connection_event() reports connections that have failed before that question. Call it
  // before bind(). kInternal if the ZeroMQ library of this host has no keys.
  [[nodiscard]] Result<> serve_keys(const std::string& secret_key);
  // Gives this dealer its key pair, and the only server that it talks to. Call it before connect().
  // kInternal as above.
  [[nodiscard]] Result<> use_key(const KeyFile& key);
  // Becomes readable when the library asks about a key. Edge-triggered, as fd().
  [[nodiscard]] int key_questions_fd() const;
  // Whether the library waits for an answer about a key.
  [[nodiscard]] bool has_key_question() const;
  // Answers the next question of the library about a key: `admits` gets the public half (Z85) and
  // the address of the peer. Returns false if there is none. A question that cannot be read is
  // answered with a refusal, and its error goes to `on_broken`.
  [[nodiscard]] bool answer_key_question(
      const std::function<bool(const std::string& key, const std::string& address)>& admits,
      const std::function<void(const Error&)>& on_broken);

  // kBusy if the address is in use.
  [[nodiscard]] Result<> bind(const PortAddress& address);
  [[nodiscard]] Result<> connect(const PortAddress& address);
  // Drops the connection that connect() made, including everything queued in it, and connects anew.
  // `to` may be another address.
  [[nodiscard]] Result<> connect_again(const PortAddress& from, const PortAddress& to);
  // Returns the endpoint that bind() chose.
  [[nodiscard]] std::string last_endpoint() const;

  // Enables connection events of a dealer, which monitor_fd() and next_connection_event() report.
  // Call before connect(). A router with keys has them from bind() on: those that it refuses.
  [[nodiscard]] Result<> watch_connections();
  [[nodiscard]] int monitor_fd() const;
  [[nodiscard]] std::optional<ConnectionEvent> next_connection_event();

  // Sets how long the destructor may wait until the last messages have left this process; initially
  // 0. The destructor waits only if the peer does not accept them.
  void wait_at_close(std::chrono::milliseconds time);

  // `route` is the peer's identity for a router, and empty for a dealer. Errors: kBusy, kPeerLost.
  [[nodiscard]] Result<> send(const std::string& route, std::span<const std::byte> bytes);
  // The same without a copy of the bytes.
  [[nodiscard]] Result<> send(const std::string& route, SharedPart& part);
  // Receives one message with all its parts and keeps at most `parts.size()` of them. Returns the
  // number of parts, or 0 if nothing has arrived.
  [[nodiscard]] std::size_t receive(std::span<Part> parts);
  // Edge-triggered (ZMQ_FD): it becomes readable once after an event. Call receive() until it
  // returns 0, and again after each send.
  [[nodiscard]] int fd() const;

 private:
  struct CloseSocket {
    void operator()(void* socket) const { zmq_close(socket); }
  };
  struct CloseContext {
    void operator()(void* context) const { zmq_ctx_term(context); }
  };
  Socket() = default;
  [[nodiscard]] Result<> watch(int events, const char* endpoint);
  [[nodiscard]] Result<> send_route(const std::string& route);
  std::unique_ptr<void, CloseContext> context_;
  std::unique_ptr<void, CloseSocket> socket_;
  std::unique_ptr<void, CloseSocket> monitor_;
  std::unique_ptr<void, CloseSocket> key_questions_;  // null without keys
  UniqueFd listening_;  // a duplicate of ZeroMQ's descriptor, so that a forked child can identify
                        // it (fork_guard.h)
};

}  // namespace wsync::control
