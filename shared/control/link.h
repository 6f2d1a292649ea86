// Link: a framed connection over a Unix socket for code without an event loop (the engine library,
// tools). Every call blocks at most until its deadline.
//
// Thread: one thread may receive while another sends. Two threads must not perform the same
// operation at the same time.
#pragma once

#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/unix_socket.h"
#include "shared/control/frame.h"

namespace wsync::control {

class Link {
 public:
  // Connects to the listener at `path`; errors as connect_unix().
  [[nodiscard]] static Result<Link> connect(const std::string& path, TimePoint deadline);
  // Takes ownership of a connected, non-blocking Unix socket.
  explicit Link(UniqueFd socket);

  // Sends one complete frame and closes the descriptors. kDeadline: the peer did not read in time;
  // if part of the frame was already sent, the connection is shut down. kPeerLost: the peer is
  // gone; what it sent before (a Refuse, an ErrorReply) can still be received.
  [[nodiscard]] Result<> send(const Envelope& envelope, const Message& message,
                              std::vector<UniqueFd> fds, TimePoint deadline);
  // Returns the next frame. kDeadline: none arrived in time, and the connection is still usable.
  // kPeerLost, kInvalidInput or kRefused: the connection cannot be used any more.
  [[nodiscard]] Result<Frame> receive(TimePoint deadline);
  // Ends the connection for both sides. A thread blocked in receive() gets kPeerLost. Thread: any.
  void shut_down() noexcept;
  // For poll(): readable if receive() may return a frame. poll() does not see a frame that is
  // already buffered, so call receive() with a deadline in the past until it returns kDeadline.
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  UniqueFd socket_;
  FrameWriter writer_;  // sending thread
  FrameReader reader_;  // receiving thread
  Bytes buffer_;        // receiving thread
};

}  // namespace wsync::control
