// Handle: one rank's ncclComm_t, and what may be asked of it when. Communicators do not block
// (ncclConfig_t.blocking = 0): a call returns at once, settled() tells when it has been carried
// out, and abort() ends it at any point. The two calls that end a communicator do block, so they
// run on a thread of their own with a deadline (ending.h).
//
// NCCL allows one call at a time on a communicator, of whichever thread; the mutex sees to that,
// and what ends one takes it out of the handle first. begin() and broadcast() are called where the
// rank's device is current, on a thread of one of its streams; the thread of the end makes it so.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/broadcast/nccl/library.h"

namespace wsync::collective::nccl {

enum class HandleState : std::uint8_t {
  kNew,      // NCCL does not know of it
  kJoining,  // the ranks meet
  kReady,    // nothing is under way
  kBusy,     // a broadcast is being enqueued, or runs
  kBroken,   // NCCL has reported an error: only abort() is left
  kGone,     // destroyed, aborted or forsaken, or about to be
};
[[nodiscard]] const char* handle_state_name(HandleState state) noexcept;

// The whole table: what a state may become.
//
//   from \ to   Joining  Ready  Busy  Broken  Gone
//   New            x                     x      x
//   Joining               x              x      x
//   Ready                        x       x      x
//   Busy                  x              x      x
//   Broken                                      x
[[nodiscard]] constexpr bool may_become(HandleState from, HandleState to) noexcept {
  using enum HandleState;
  if (from == kGone || to == kNew) return false;
  if (to == kGone) return true;
  if (from == kBroken) return false;
  switch (to) {
    case kJoining:
      return from == kNew;
    case kReady:
      return from == kJoining || from == kBusy;
    case kBusy:
      return from == kReady;
    case kBroken:
      return true;
    case kNew:
    case kGone:
      break;
  }
  return false;
}

class Handle {
 public:
  struct Place {
    std::uint32_t rank = 0;
    std::uint32_t size = 0;
    // Makes the rank's device current on the thread that calls it; owns what it uses.
    std::function<void()> enter = [] {};
    // For ncclCommDestroy or ncclCommAbort; before that, leaving in good order has leave_time.
    std::chrono::nanoseconds leave_time{};
    std::chrono::nanoseconds end_time{};
  };
  // `nccl` outlives it, and everything that does not end in time.
  Handle(const Nccl& nccl, Place place) : nccl_(nccl), place_(std::move(place)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();  // aborts what is left, in the same time

  // Begins the rendezvous, on the device that is current; returns without waiting for the others.
  [[nodiscard]] Result<> begin(const ncclUniqueId& id);
  // True when what was asked for last has been carried out: the rank is in, the broadcast is on its
  // stream, the leaving is over. False before begin() too. NCCL's error breaks the handle and is
  // returned from then on; a handle that is gone is kCancelled.
  [[nodiscard]] Result<bool> settled();
  // Only the error that NCCL reports now, if any; nothing before begin() and after the end.
  [[nodiscard]] Result<> look();
  // One ncclBroadcast of `bytes` bytes, whatever they mean. `stream` is a CUstream of the device.
  struct Transfer {
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
    std::uint32_t root = 0;
    void* stream = nullptr;
  };
  [[nodiscard]] Result<> broadcast(const Transfer& transfer);
  // The stream has carried the broadcast out.
  void finished();
  // Ends the communicator; from any state, once, from then on it is gone. True when NCCL has freed
  // it. False when it has not come back in time: the call goes on by itself on a thread that nobody
  // waits for, what runs on the GPU may go on too, and so neither the GPU nor what the broadcasts
  // wrote to may be used again by this process.
  [[nodiscard]] bool abort();
  // The same in good order, where it is ready: finalized, then destroyed. Aborted where it is not,
  // or NCCL does not finish within the leave time.
  [[nodiscard]] bool leave();
  // Neither: NCCL keeps what it has until the process ends. For a GPU that hangs.
  void forsake();

  // The ranks have met, and nothing has ended since.
  [[nodiscard]] bool ready() const;

 private:
  // Under the mutex.
  void become(HandleState state);
  [[nodiscard]] Result<bool> poll();
  [[nodiscard]] Result<> asked(ncclResult_t code, const char* what);
  [[nodiscard]] std::string sentence(const char* what) const;
  [[nodiscard]] Result<> needs(HandleState state, const char* what) const;
  // Takes the communicator out of it; null when there is none. What follows is not under the mutex.
  [[nodiscard]] ncclComm_t take();
  [[nodiscard]] bool end(ncclComm_t communicator, bool orderly) const;

  const Nccl& nccl_;
  const Place place_;
  mutable std::mutex mutex_;
  HandleState state_ = HandleState::kNew;
  ncclComm_t communicator_ = nullptr;
  std::optional<Error> error_;  // what broke it
};

}  // namespace wsync::collective::nccl
