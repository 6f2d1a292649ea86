// Handle: one rank's ncclComm_t, and what may be asked of it when. Communicators do not block
// (ncclConfig_t.blocking = 0): a call returns at once, settled() tells when it has been carried
// out, and abort() ends it at any point.
//
// NCCL allows one call at a time on a communicator, of whichever thread; the mutex sees to that.
// What touches the device (begin, broadcast, finalize, destroy, abort) is called where the rank's
// device is current: on a thread of one of its streams.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/collective/nccl/library.h"
#include "shared/collective/nccl/members.h"

namespace wsync::collective::nccl {

enum class HandleState : std::uint8_t {
  kNew,      // NCCL does not know of it
  kJoining,  // the ranks meet
  kReady,    // nothing is under way
  kBusy,     // a broadcast is being enqueued, or runs
  kLeaving,  // finalize
  kBroken,   // NCCL has reported an error: only abort() is left
  kGone,     // destroyed or aborted
};
[[nodiscard]] const char* handle_state_name(HandleState state) noexcept;

// The whole table: what a state may become.
//
//   from \ to   Joining  Ready  Busy  Leaving  Broken  Gone
//   New            x                              x      x
//   Joining               x                       x      x
//   Ready                        x       x        x      x
//   Busy                  x                       x      x
//   Leaving                                       x      x
//   Broken                                               x
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
    case kLeaving:
      return from == kReady;
    case kBroken:
      return true;
    case kNew:
    case kGone:
      break;
  }
  return false;
}

using NcclUniqueId = std::array<std::byte, kUniqueIdBytes>;

class Handle {
 public:
  struct Place {
    std::uint32_t rank = 0;
    std::uint32_t size = 0;
  };
  // `nccl` outlives it.
  Handle(const Nccl& nccl, Place place) : nccl_(nccl), place_(place) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();  // aborts what is left

  // Begins the rendezvous, on the device that is current; returns without waiting for the others.
  [[nodiscard]] Result<> begin(const NcclUniqueId& id);
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
  // Begins to leave in good order; settled() tells when NCCL has nothing more to do.
  [[nodiscard]] Result<> finalize();
  // After a finalize() that has settled.
  void destroy();
  // Ends whatever runs and frees it; at any time, from any state.
  void abort();
  // Neither: NCCL keeps what it has until the process ends. For a GPU that hangs.
  void forsake();

  [[nodiscard]] HandleState state() const;
  // The ranks have met, and nothing has ended since.
  [[nodiscard]] bool ready() const {
    const HandleState now = state();
    return now == HandleState::kReady || now == HandleState::kBusy;
  }

 private:
  // Under the mutex.
  void become(HandleState state);
  [[nodiscard]] Result<bool> poll();
  [[nodiscard]] Result<> asked(ncclResult_t code, const char* what);
  [[nodiscard]] std::string sentence(const char* what) const;
  [[nodiscard]] Result<> needs(HandleState state, const char* what) const;

  const Nccl& nccl_;
  const Place place_;
  mutable std::mutex mutex_;
  HandleState state_ = HandleState::kNew;
  ncclComm_t communicator_ = nullptr;
  std::optional<Error> error_;  // what broke it
};

}  // namespace wsync::collective::nccl
