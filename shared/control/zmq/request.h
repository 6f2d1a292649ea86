// One request of a command to a coordinator or a sidecar, on a loop of its own.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "shared/base/error.h"
#include "shared/base/liveness.h"
#include "shared/base/round_deadlines.h"
#include "shared/control/codec.h"
#include "shared/control/port.h"

namespace wsync::control {

struct RequestOptions {
  std::string address;
  std::string name = "command";
  std::chrono::milliseconds connect_deadline{limits::kHelloDeadlineMs};
  std::chrono::milliseconds deadline{limits::kPublishDeadlineMs};  // for the reply
  PortTimes times;
  // SIGINT and SIGTERM end the wait with kCancelled; no other Signals may live meanwhile.
  bool stop_on_signal = false;
  std::function<void()> on_sent = {};  // the peer was there and has been asked; may be empty
};

// Connects, sends `message` and waits for the reply that echoes its request number (chosen here
// when it is 0). Progress messages of the request go to `on_progress` (may be empty); heartbeats
// and anything else are passed over.
//
// Errors: kPeerLost: nobody answers at the address, or the peer went away; kDeadline: no reply in
// time, or the peer fell silent; an ErrorReply becomes an Error with its code and sentence; those
// of connect_zmq().
// Thread: any; blocks it. The loop is private.
[[nodiscard]] Result<Decoded> request(const RequestOptions& options, Envelope envelope,
                                      const Message& message,
                                      std::function<void(const Progress&)> on_progress = {});

}  // namespace wsync::control
