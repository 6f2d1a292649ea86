// Process groups inside a host: ranks pass messages through rings in one memfd, which the launcher
// creates (host_segment.h) and every rank process inherits or is sent. A message is copied twice,
// through no system call unless its receiver sleeps. Nothing is left behind when the processes end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "shared/process_group/process_group.h"

namespace wsync::collective::memory {

// Where a rank is: not attached yet, attached, or gone in order.
enum class RankPhase : std::uint32_t { kAway, kThere, kLeft };

// The membership of one rank. It may send before the others are there. Destroyed, it leaves the
// group: what it has sent can still be received, and a rank that waits for more of it fails with
// kPeerLost.
class MemoryGroup : public ProcessGroup {
 public:
  // Tells the launcher that this rank lives. Any thread.
  virtual void beat() noexcept = 0;
  // What the launcher and the other ranks see of this rank beside its beat: a word that means what
  // their user wants; 0 at first. Any thread.
  virtual void notify(std::uint64_t word) noexcept = 0;
  // What a rank of this group has told last.
  [[nodiscard]] virtual std::uint64_t told(std::uint32_t rank) const noexcept = 0;
};

// Joins as `rank` the group whose segment the launcher has made. `fd` is borrowed, and not needed
// any more afterwards. kInvalidInput when it is no segment, or has no such rank; kRefused when the
// rank is or was taken; the reason of a group that is broken.
[[nodiscard]] Result<std::unique_ptr<MemoryGroup>> attach(int fd, std::uint32_t rank);

// Beats for a rank, from a thread of its own, until destroyed. The group outlives it.
class Heartbeat {
 public:
  Heartbeat(MemoryGroup& group, std::chrono::nanoseconds interval);

 private:
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // ends first
};

}  // namespace wsync::collective::memory
