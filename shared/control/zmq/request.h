// Sends one request of a command to a coordinator or a sidecar, on a private loop.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/base/liveness.h"
#include "shared/base/round_deadlines.h"
#include "shared/control/codec.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/port.h"

namespace wsync::control {

struct RequestOptions {
  std::string address;
  std::string name = "command";
  // For the connection, if a process listens at the address.
  std::chrono::milliseconds connect_deadline{limits::kHelloDeadlineMs};
  // The caller has just started the process at the address: an address at which nobody listens yet
  // is tried again until connect_deadline, instead of being an error at once.
  bool peer_is_starting = false;
  std::chrono::milliseconds deadline{limits::kPublishDeadlineMs};  // for the reply
  PortTimes times;
  std::optional<KeyFile> key = {};  // of this command; none: the peer has no keys
  // SIGINT and SIGTERM end the wait with kCancelled. No other Signals object may exist meanwhile.
  bool stop_on_signal = false;
  std::function<void()> on_sent =
      {};  // called after the request was sent to a connected peer; may be empty
  // Called once if neither progress nor a reply has come within `quiet_after` of the sending. May
  // be empty.
  std::function<void()> on_quiet = {};
  std::chrono::milliseconds quiet_after{};
  // Called with the ErrorReply that becomes the Error. `unread`: the peer could not read the
  // request and is of another release. May be empty.
  std::function<void(const ErrorReply& reply, bool unread)> on_error = {};
};

// Connects, sends `message` and waits for the reply that echoes its request number (chosen here if
// it is 0). Progress messages of the request go to `on_progress` (may be empty). Heartbeats and all
// other messages are ignored.
//
// Errors: kPeerLost: nobody listens at the address (known at once), nobody answers there, or the
// connection was lost; kRefused: it does not admit the key, or one side
// has keys and the other has none; kDeadline: no reply in time, or the peer is silent; an
// ErrorReply becomes an Error with its code and sentence; those of connect_zmq(). Thread: any;
// blocks the caller. The loop is private.
[[nodiscard]] Result<Decoded> request(const RequestOptions& options, Envelope envelope,
                                      const Message& message,
                                      std::function<void(const Progress&)> on_progress = {});

}  // namespace wsync::control
