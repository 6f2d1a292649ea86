// Link: a framed connection over a Unix socket for code without an event loop (the engine library,
// tools). Every call waits until its deadline at most.
//
// Thread: one thread may receive while one other sends; two threads may not do the same at once.
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
  // Takes over a connected, non-blocking Unix socket.
  explicit Link(UniqueFd socket);

  // Sends one frame whole; the descriptors are closed here. kDeadline when the peer did not read in
  // time: if a part of the frame had gone out, the connection is shut down. kPeerLost when the peer
  // is gone; what it sent before (a Refuse, an ErrorReply) can still be received.
  [[nodiscard]] Result<> send(const Envelope& envelope, const Message& message,
                              std::vector<UniqueFd> fds, TimePoint deadline);
  // The next frame. kDeadline: none came in time, the connection is good; kPeerLost, kInvalidInput
  // or kRefused: it is of no use any more.
  [[nodiscard]] Result<Frame> receive(TimePoint deadline);
  // Ends the connection for both sides: a thread that waits in receive() gets kPeerLost. May be
  // called from any thread.
  void shut_down() noexcept;
  // For poll(): readable when receive() may have something. A frame that was read ahead is not
  // seen by poll(); call receive() with a deadline in the past until it says kDeadline.
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  UniqueFd socket_;
  FrameWriter writer_;  // sending thread
  FrameReader reader_;  // receiving thread
  Bytes buffer_;        // receiving thread
};

}  // namespace wsync::control
