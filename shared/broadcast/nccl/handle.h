// Handle: one rank's ncclComm_t, and its state machine. Communicators are non-blocking
// (ncclConfig_t.blocking = 0): a call returns at once, settled() reports when it has been executed,
// and abort() ends it at any point. The two calls that end a communicator do block, so they run on
// a separate thread with a deadline (ending.h).
//
// NCCL allows one call at a time on a communicator, from any thread. The mutex enforces this, and a
// call that ends the communicator first takes it out of the handle. begin() and broadcast() must be
// called on a thread of one of the rank's streams, where its device is current. The thread that
// ends the communicator makes the device current itself.
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
  kNew,      // unknown to NCCL
  kJoining,  // rendezvous of the ranks
  kReady,    // no operation is running
  kBusy,     // a broadcast is being enqueued or is running
  kBroken,   // NCCL has reported an error; only abort() is allowed
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
    // Makes the rank's device current on the calling thread. Owns everything that it uses.
    std::function<void()> enter = [] {};
    // end_time bounds ncclCommDestroy or ncclCommAbort. leave_time bounds the orderly leave before
    // it.
    std::chrono::nanoseconds leave_time{};
    std::chrono::nanoseconds end_time{};
  };
  // `nccl` must outlive the handle and every call that does not end in time.
  Handle(const Nccl& nccl, Place place) : nccl_(nccl), place_(std::move(place)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();  // aborts an active communicator, with the same limits

  // Starts the rendezvous on the current device. Returns without waiting for the others.
  [[nodiscard]] Result<> begin(const ncclUniqueId& id);
  // Returns true if the last requested operation is complete: the rank has joined, the broadcast is
  // on its stream, or the leave is over. Returns false before begin(). An NCCL error breaks the
  // handle and is returned from then on. kCancelled if the handle is gone.
  [[nodiscard]] Result<bool> settled();
  // Returns only the error that NCCL reports now, if any. Succeeds before begin() and after the
  // end.
  [[nodiscard]] Result<> look();
  // One ncclBroadcast of `bytes` untyped bytes. `stream` is a CUstream of the device.
  struct Transfer {
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
    std::uint32_t root = 0;
    void* stream = nullptr;
  };
  [[nodiscard]] Result<> broadcast(const Transfer& transfer);
  // Records that the stream has completed the broadcast.
  void finished();
  // Ends the communicator from any state; it is gone from then on. Returns true if NCCL has freed
  // it. Returns false if the call has not returned in time. The call then continues on a detached
  // thread and work may still run on the GPU, so this process must not use the GPU or the broadcast
  // destinations again.
  [[nodiscard]] bool abort();
  // Ends a ready communicator in an orderly way: finalizes it, then destroys it. Aborts it if it is
  // not ready or if NCCL does not finish within the leave time.
  [[nodiscard]] bool leave();
  // Neither aborts nor leaves: NCCL keeps its resources until the process ends. For a GPU that
  // hangs.
  void forsake();

  // Returns true if the ranks have met and the communicator has not ended.
  [[nodiscard]] bool ready() const;

 private:
  // Call with the mutex held.
  void become(HandleState state);
  [[nodiscard]] Result<bool> poll();
  [[nodiscard]] Result<> asked(ncclResult_t code, const char* what);
  [[nodiscard]] std::string sentence(const char* what) const;
  [[nodiscard]] Result<> needs(HandleState state, const char* what) const;
  // Takes the communicator out of the handle; null if there is none. Later calls on it need no
  // mutex.
  [[nodiscard]] ncclComm_t take();
  [[nodiscard]] bool end(ncclComm_t communicator, bool orderly) const;

  const Nccl& nccl_;
  const Place place_;
  mutable std::mutex mutex_;
  HandleState state_ = HandleState::kNew;
  ncclComm_t communicator_ = nullptr;
  std::optional<Error> error_;  // the error that broke it
};

}  // namespace wsync::collective::nccl
