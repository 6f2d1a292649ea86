// LinkConnection: the socket from a rank to its sidecar. It connects, sends the hello, waits for
// the welcome, reconnects after a loss with growing pauses, and sends and receives frames. Its
// handler decides what a frame means.
//
// Thread: confined to the thread that calls poll(), except wake() and fd().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/control/frame.h"

namespace wsync::engine {

// The longest pause of a rank that is refused each time.
inline constexpr std::int64_t kRefusedRetryMaxMs = 10'000;

// Callbacks to the owner of a connection, during poll(), send(), flush() and disconnect().
class LinkHandler {
 public:
  // The first message of a new connection, and its envelope.
  [[nodiscard]] virtual std::pair<control::Envelope, control::EngineHello> make_hello() = 0;
  // wake() was called, or the sidecar has sent something. Handle the queued reports of the engine
  // now, because they are older than the message.
  virtual void handle_wake() = 0;
  virtual void handle_frame(control::Frame frame) = 0;
  // A frame cannot be decoded. `envelope`: set for a message of an unknown version or type, which
  // can be answered. handle_loss() follows.
  virtual void handle_malformed(const std::optional<control::Envelope>& envelope,
                                const Error& error) = 0;
  // The connection ends for the reason `why`, or could not be established. Everything mapped from
  // the sidecar must be unmapped before this returns, so that its memory is free when the sidecar
  // sees the closed socket and frees it. Nothing sent now arrives.
  virtual void handle_loss(const std::string& why) = 0;

 protected:
  ~LinkHandler() = default;
};

class LinkConnection {
 public:
  // Creates the descriptors; the first poll() connects. `handler` is borrowed and must outlive the
  // connection. Returns kInvalidInput if the path is not valid for a socket; kIo,
  // kResourceExhausted.
  [[nodiscard]] static Result<std::unique_ptr<LinkConnection>> create(std::string path,
                                                                      LinkHandler& handler);
  LinkConnection(const LinkConnection&) = delete;
  LinkConnection& operator=(const LinkConnection&) = delete;

  // Readable when poll() has something to do. Any thread.
  [[nodiscard]] int fd() const noexcept { return epoll_.get(); }
  // Waits up to timeout_ms (-1: without limit) for an event, and handles everything that has
  // arrived. The only error is kIo, because the loss of the sidecar is not an error here.
  [[nodiscard]] Result<> poll(int timeout_ms);
  // Makes the current or the next poll() return after handle_wake(). Any thread.
  void wake() noexcept;
  // Makes the poll() at this time return, or the next one after it, once; std::nullopt: none.
  void wake_at(std::optional<TimePoint> time);
  // Whether poll(0) would find an event.
  [[nodiscard]] bool has_event() const;

  // The sidecar has welcomed the rank. Ends the deadline of the hello; the next loss is followed by
  // the shortest pause.
  void confirm() noexcept;
  // Queues the message and sends what the socket accepts. Does nothing without a connection. A
  // message that cannot be sent ends the connection.
  void send(const control::Envelope& envelope, const control::Message& message);
  // Sends queued messages, as far as the socket accepts them.
  void flush();
  // Ends the connection as disconnect() does, and makes no other one until resume(). Does no harm
  // without a connection.
  void suspend(const std::string& why);
  void resume();
  // Ends the connection: calls handle_loss(why), then closes the socket, then starts the timer for
  // the next attempt.
  void disconnect(const std::string& why);
  // The sidecar has refused the rank, and closes the connection. Each refusal in a row doubles the
  // pause before the next attempt, up to kRefusedRetryMaxMs: the next attempt has the same answer
  // unless something changes. A connection that ends without a refusal begins anew.
  void refused() noexcept { is_refused_ = true; }
  // The pause after the end of the last connection, before the next attempt.
  [[nodiscard]] std::int64_t pause_ms() const noexcept { return pause_ms_; }

 private:
  LinkConnection(std::string path, LinkHandler& handler)
      : path_(std::move(path)), handler_(handler) {}
  [[nodiscard]] Result<> make_descriptors();
  void arm_timer(std::int64_t delay_ms);
  void handle_timer();
  void connect();
  void receive();
  void receive_all();
  // As disconnect(); the reason says what listens at the path, unless a sidecar has welcomed or
  // refused the rank.
  void disconnect_from_peer(const std::string& why);

  const std::string path_;
  LinkHandler& handler_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd timer_;   // connected: the deadline of the hello; otherwise the next attempt
  UniqueFd alarm_;   // of wake_at()
  UniqueFd socket_;  // valid: connected
  control::FrameReader reader_;
  control::FrameWriter writer_;
  std::optional<TimePoint> wake_at_;
  bool want_write_ = false;  // the socket did not accept everything
  bool confirmed_ = false;   // welcomed on the current connection
  bool is_refused_ = false;  // on the current connection
  bool is_receiving_ = false;
  std::int64_t backoff_ms_ = 0;
  std::int64_t refused_backoff_ms_ = 0;  // after the last refusal
  std::int64_t pause_ms_ = 0;
};

}  // namespace wsync::engine
