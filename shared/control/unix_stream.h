// UnixStream and UnixListener: framed connections on the loop, for the sidecar's engines.
//
// Thread: the loop's. Callbacks run on the loop, never inside a call to the object; the object may
//   be destroyed inside any of them.
// Outlives: the loop outlives both.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/unix_socket.h"
#include "shared/control/frame.h"
#include "shared/loop/loop.h"

namespace wsync::control {

struct StreamCallbacks {
  std::function<void(Frame)> on_frame;
  // The connection has ended. Called once, as the last callback. kPeerLost: the peer hung up or
  // died; kInvalidInput, kRefused: it sent unreadable data (and, for kRefused, got an ErrorReply);
  // kCancelled: finish() is complete; kDeadline: finish() did not complete in time.
  std::function<void(Error)> on_close;
};

class UnixStream {
 public:
  // Takes ownership of a connected, non-blocking socket.
  [[nodiscard]] static Result<std::unique_ptr<UnixStream>> adopt(Loop& loop, UniqueFd socket,
                                                                 StreamCallbacks callbacks);
  // Connects without waiting; errors as connect_unix().
  [[nodiscard]] static Result<std::unique_ptr<UnixStream>> connect(Loop& loop,
                                                                   const std::string& path,
                                                                   StreamCallbacks callbacks);
  UnixStream(const UnixStream&) = delete;
  UnixStream& operator=(const UnixStream&) = delete;
  ~UnixStream();  // closes without further callbacks; unsent data is lost

  // Queues a frame and sends what the socket accepts now. The descriptors are closed after they are
  // sent. kBusy: the peer does not read and the queue is full; kPeerLost: the connection has ended
  // (on_close follows or was called); kInvalidInput as encode().
  [[nodiscard]] Result<> send(const Envelope& envelope, const Message& message,
                              std::vector<UniqueFd> fds = {});
  // Accepts no further frames in either direction, sends what is queued, then closes.
  void finish(std::chrono::milliseconds deadline);
  [[nodiscard]] std::uint64_t queued_bytes() const noexcept;

 private:
  struct State;
  explicit UnixStream(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

class UnixListener {
 public:
  using OnConnection = std::function<void(UniqueFd socket, PeerCredentials peer)>;
  // Listens on a claimed path; errors as ListeningSocket::bind(). Connections of other users are
  // closed and logged.
  [[nodiscard]] static Result<std::unique_ptr<UnixListener>> create(Loop& loop,
                                                                    const std::string& path,
                                                                    OnConnection on_connection,
                                                                    Claim how = Claim::kIfFree);
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;
  ~UnixListener();  // removes the socket file
  [[nodiscard]] const std::string& path() const noexcept;

 private:
  struct State;
  explicit UnixListener(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace wsync::control
