// Process groups: how the ranks of a trainer, each a process of its own, pass messages to each
// other. One interface for every backend, a folder for each: memory/ inside a host, gloo/ between
// hosts. What ranks do together (collectives.h) is built on exchange() alone, so that sums have one
// order whatever the backend.
//
// No wait is without a deadline. A group that is broken (a deadline, an abort, a rank that is gone)
// stays so: every pending and later call on every rank fails with the first reason, or, where a
// backend has no way to tell it, with kPeerLost.
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

// One rank's membership, which ends when it is destroyed: ranks that end in order meet in a barrier
// before. exchange() from one thread at a time; the others from any thread.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t size() const noexcept = 0;
  // Sends and receives all of these side by side; returns when what was sent may be overwritten and
  // what was to be received is there. Messages from one rank to another arrive in the order in
  // which they were sent; both sides name the same size. A send may wait for its receiver (it need
  // not: small ones are held on the way). Not to itself. kDeadline and kPeerLost name this rank and
  // those it waited for; kInvalidInput, when the sizes differ, both ranks and both sizes. Every
  // error breaks the group.
  [[nodiscard]] virtual Result<> exchange(std::span<const Send> sends,
                                          std::span<const Receive> receives,
                                          TimePoint deadline) = 0;
  // Breaks the group for all its ranks, and wakes those that wait. The first reason counts.
  virtual void abort(const Error& reason) = 0;
  // Success, or what broke the group.
  [[nodiscard]] virtual Result<> health() const = 0;

 protected:
  ProcessGroup() = default;
};

}  // namespace wsync::collective
