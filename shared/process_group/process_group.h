// Process groups: the ranks of a trainer, each a process of its own, pass messages to each other.
// All backends share one interface and have a folder each: memory/ inside a host, gloo/ between
// hosts. Collective operations (collectives.h) use only exchange(), so sums have the same order on
// every backend.
//
// Every wait has a deadline. A broken group (a deadline, an abort, a lost rank) stays broken: every
// pending and later call on every rank fails with the first reason, or with kPeerLost if a backend
// cannot deliver the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/base/clock.h"
#include "shared/base/error.h"

namespace wsync::collective {

struct Send {
  std::uint32_t to = 0;
  std::span<const std::byte> bytes;
};
struct Receive {
  std::uint32_t from = 0;
  std::span<std::byte> bytes;
};

// One rank's membership, until destroyed. Ranks that end in an orderly way meet in a barrier first.
// Thread: exchange() from one thread at a time; the others from any thread.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t size() const noexcept = 0;
  // Sends and receives all of these concurrently. Returns when the sent bytes may be overwritten
  // and the received bytes have arrived. Messages from one rank to another arrive in the order in
  // which they were sent, and both sides must give the same size. A send may or may not wait for
  // its receiver, because small messages are buffered. A rank cannot send to itself. kDeadline and
  // kPeerLost name this rank and the ranks it waited for. kInvalidInput for different sizes names
  // both ranks and both sizes. Every error breaks the group.
  [[nodiscard]] virtual Result<> exchange(std::span<const Send> sends,
                                          std::span<const Receive> receives,
                                          TimePoint deadline) = 0;
  // Breaks the group for all its ranks and wakes the waiting ones. Only the first reason counts.
  virtual void abort(const Error& reason) = 0;
  // Returns success, or the error that broke the group.
  [[nodiscard]] virtual Result<> health() const = 0;

 protected:
  ProcessGroup() = default;
};

}  // namespace wsync::collective
