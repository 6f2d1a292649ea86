// Small messages between two threads: over a bare Unix socket, bare ZeroMQ, or another
// implementation of Pings, so that all are measured in the same way.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/error.h"

namespace wsync::bench {

// One end asks and the other one answers. Every message is compared with the one that was sent. A
// call that makes no progress for half a minute returns kDeadline. Thread: the one that created it.
class Pings {
 public:
  Pings() = default;
  virtual ~Pings() = default;
  Pings(const Pings&) = delete;
  Pings& operator=(const Pings&) = delete;
  // Sends `count` questions, each after the answer to the one before. Returns the total time.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> round_trips(unsigned count) = 0;
  // Sends `count` questions without waiting. Returns the time until one answer confirms that all
  // have arrived.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> one_way(unsigned count) = 0;
};

// The messages to send. Neither is empty.
struct PingBytes {
  Bytes question;
  Bytes answer;
};

// Uses a pair of connected stream sockets.
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_bare_unix(PingBytes bytes);
// A DEALER asks and a ROUTER answers, each with its own context. `address` is "ipc://..." or
// "tcp://127.0.0.1:*".
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_bare_zmq(const std::string& address,
                                                           PingBytes bytes);

}  // namespace wsync::bench
