// Copies from one thread's memory to another's over loopback TCP, a Unix socket and ZeroMQ.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "bench/baseline/workbench.h"

namespace wsync::bench {

// Moves bytes in one direction. send() and receive() run at the same time, each in its own thread.
class OneWay {
 public:
  OneWay() = default;
  virtual ~OneWay() = default;
  OneWay(const OneWay&) = delete;
  OneWay& operator=(const OneWay&) = delete;
  virtual Result<> send(std::span<const std::byte> bytes) = 0;
  virtual Result<> receive(std::span<std::byte> bytes) = 0;
};
// Connects this process with itself by one TCP connection on loopback.
[[nodiscard]] Result<std::shared_ptr<OneWay>> make_tcp_link();
// Moves the ground's source to its target. The time runs from before the first byte is sent until
// the last one has been received. Then checks what arrived.
[[nodiscard]] Result<Spent> pass_all(Ground& ground, OneWay& link);

// Adds the rows of links. `directory` is for a socket. `bench` outlives the rows. Each measurement
// checks what arrived, and returns kDeadline if it makes no progress for half a minute.
[[nodiscard]] Result<> add_link_rows(Workbench& bench, const std::string& directory,
                                     BaselineRows& rows);

}  // namespace wsync::bench
