// Process groups inside a host. Ranks pass messages through rings in one memfd. The launcher
// creates it (host_segment.h), and every rank process inherits or receives it. A message is copied
// twice and needs no system call unless its receiver sleeps. Nothing remains when the processes
// end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "shared/process_group/process_group.h"

namespace wsync::collective::memory {

// The phase of a rank: not attached yet, attached, or left in an orderly way.
enum class RankPhase : std::uint32_t { kAway, kThere, kLeft };

// The membership of one rank. It may send before the others attach. The destructor leaves the
// group: messages already sent can still be received, and a rank that waits for more fails with
// kPeerLost.
class MemoryGroup : public ProcessGroup {
 public:
  // Signals the launcher that this rank is alive. Thread: any.
  virtual void beat() noexcept = 0;
  // Publishes a status word to the launcher and the other ranks, besides the beat. The user defines
  // its meaning; initially 0. Thread: any.
  virtual void notify(std::uint64_t word) noexcept = 0;
  // Returns the last status word of a rank of this group.
  [[nodiscard]] virtual std::uint64_t told(std::uint32_t rank) const noexcept = 0;
};

// Joins as `rank` the group whose segment the launcher has made. `fd` is borrowed and not needed
// after the call. kInvalidInput if it is not a segment or has no such rank; kRefused if the rank is
// or was taken; if the group is broken, the reason.
[[nodiscard]] Result<std::unique_ptr<MemoryGroup>> attach(int fd, std::uint32_t rank);

// Sends beats for a rank from its own thread until destroyed. The group must outlive it.
class Heartbeat {
 public:
  Heartbeat(MemoryGroup& group, std::chrono::nanoseconds interval);

 private:
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // joined before the other members are destroyed
};

}  // namespace wsync::collective::memory
