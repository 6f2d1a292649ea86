// LinkConnection: the socket from a rank to its sidecar. It connects, sends the hello, waits for
// the welcome, connects again after a loss with growing pauses, and sends and receives frames. What
// a frame means is decided by its handler.
//
// Thread: confined to the thread that calls poll(), except wake() and fd().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/control/frame.h"

namespace wsync::engine {

// What a connection asks of its owner, during poll(), send(), flush() and disconnect().
class LinkHandler {
 public:
  // The first message of a new connection, and its envelope.
  [[nodiscard]] virtual std::pair<control::Envelope, control::EngineHello> make_hello() = 0;
  // wake() was called, or the sidecar has sent something: reports of the engine are older than that
  // and have to be handled first.
  virtual void handle_wake() = 0;
  virtual void handle_frame(control::Frame frame) = 0;
  // A frame that cannot be read. `envelope`: of a message of an unknown version or type, which can
  // be answered. handle_loss() follows.
  virtual void handle_malformed(const std::optional<control::Envelope>& envelope,
                                const Error& error) = 0;
  // The connection ends for the reason `why`, or could not be made. What was mapped of the sidecar
  // is to be unmapped before this returns: the sidecar frees that memory as soon as it sees the
  // socket closed. Nothing that is sent now arrives.
  virtual void handle_loss(const std::string& why) = 0;

 protected:
  ~LinkHandler() = default;
};

class LinkConnection {
 public:
  // Makes the descriptors; the first poll() connects. `handler` is borrowed and outlives the
  // connection. kInvalidInput for a path that cannot be a socket's; kIo, kResourceExhausted.
  [[nodiscard]] static Result<std::unique_ptr<LinkConnection>> create(std::string path,
                                                                      LinkHandler& handler);
  LinkConnection(const LinkConnection&) = delete;
  LinkConnection& operator=(const LinkConnection&) = delete;

  // Readable when poll() has something to do. Any thread.
  [[nodiscard]] int fd() const noexcept { return epoll_.get(); }
  // Waits up to timeout_ms (-1: without end) for an event, and handles what has come. Only kIo: the
  // loss of the sidecar is not an error here.
  [[nodiscard]] Result<> poll(int timeout_ms);
  // Makes a poll() return, now or the next time, after handle_wake(). Any thread.
  void wake() noexcept;
  // Whether poll(0) would find an event.
  [[nodiscard]] bool has_event() const;

  // The sidecar has welcomed the rank: the deadline of the hello is over, and the next loss is
  // followed by the shortest pause.
  void confirm() noexcept;
  // Queues the message and sends what the socket takes; nothing without a connection. What cannot
  // be sent ends the connection.
  void send(const control::Envelope& envelope, const control::Message& message);
  // Sends what is queued, as far as the socket takes it.
  void flush();
  // Ends the connection: handle_loss(why), then the socket is closed, then the timer for the next
  // attempt runs.
  void disconnect(const std::string& why);

 private:
  LinkConnection(std::string path, LinkHandler& handler)
      : path_(std::move(path)), handler_(handler) {}
  [[nodiscard]] Result<> make_descriptors();
  void arm_timer(std::int64_t delay_ms);
  void handle_timer();
  void connect();
  void receive();

  const std::string path_;
  LinkHandler& handler_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd timer_;   // while connected: the deadline of the hello; else the next attempt
  UniqueFd socket_;  // valid: connected
  control::FrameReader reader_;
  control::FrameWriter writer_;
  bool want_write_ = false;  // the socket did not take everything
  bool confirmed_ = false;   // since it is connected
  std::int64_t backoff_ms_ = 0;
};

}  // namespace wsync::engine
