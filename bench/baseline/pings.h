// Small messages between two threads: over a bare Unix socket, bare ZeroMQ, or whatever implements
// it, so that all are asked the same.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/error.h"

namespace wsync::bench {

// One end asks, the other one answers. Every message is checked to be the one that was sent. Calls
// that stand still for half a minute are kDeadline. Thread: the one that made it.
class Pings {
 public:
  Pings() = default;
  virtual ~Pings() = default;
  Pings(const Pings&) = delete;
  Pings& operator=(const Pings&) = delete;
  // `count` times a question and its answer, one after the other: all of them together.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> round_trips(unsigned count) = 0;
  // `count` questions without waiting, until the one answer that says that all have come.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> one_way(unsigned count) = 0;
};

// What travels; neither is empty.
struct PingBytes {
  Bytes question;
  Bytes answer;
};

// A pair of connected stream sockets.
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_bare_unix(PingBytes bytes);
// A DEALER that asks and a ROUTER that answers, each with its own context. `address` is "ipc://..."
// or "tcp://127.0.0.1:*".
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_bare_zmq(const std::string& address,
                                                           PingBytes bytes);

}  // namespace wsync::bench
