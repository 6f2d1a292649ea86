// Roster: the state shared by the ranks of one group. The ranks meet before each broadcast, so that
// they enter NCCL only after every rank has arrived with the same size and root; otherwise NCCL
// would hang on the GPU. They meet again after it, so that the root finishes only when all ranks
// have its bytes.
//
// Each rank numbers its broadcasts in its own order; equal numbers mean the same broadcast. The
// first error breaks the group for every rank. Thread: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/broadcast/communicator.h"

namespace wsync::collective::nccl {

class Roster {
 public:
  explicit Roster(std::uint32_t size) : size_(size), joined_(size, false) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  // kInvalidInput for a rank out of range; kRefused for a rank that has already joined.
  [[nodiscard]] Result<> join(Rank rank);
  // Reverts a join() after a later step of joining failed.
  void forget(Rank rank);
  // Returns the number of ranks that have joined.
  [[nodiscard]] std::uint32_t here() const;

  // Breaks the group. Only the first error counts.
  void break_with(const Error& reason);
  // Returns success, the error that broke the group, or kPeerLost if a rank has left it.
  [[nodiscard]] Result<> health() const;
  // Removes the rank. Breaks the group if a broadcast is running; otherwise the other ranks notice
  // at their next broadcast. Returns true if the group is intact, so that the rank can leave NCCL
  // in an orderly way.
  [[nodiscard]] bool leave(Rank rank);

  // One rank's part of broadcast number `sequence`.
  struct Visit {
    Rank rank{};
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    Rank root{};
    TimePoint deadline{};
  };
  // Waits for all ranks. The group breaks if ranks disagree, at the deadline (kDeadline), or on
  // `stop` (kCancelled: the rank's stream is being destroyed).
  [[nodiscard]] Result<> arrive(const Visit& visit, const std::stop_token& stop);
  // Reports that the rank has its bytes and waits until all ranks have theirs. Errors as arrive().
  [[nodiscard]] Result<> depart(const Visit& visit, const std::stop_token& stop);

 private:
  struct Meeting {
    std::uint64_t bytes = 0;
    Rank root{};
    bool root_came = false;
    std::uint32_t came = 0;
    std::uint32_t done = 0;
    std::uint32_t gone = 0;
  };

  // Call with the mutex held.
  [[nodiscard]] Result<> broken() const;
  void break_now(const Error& reason);
  [[nodiscard]] std::uint32_t count() const;
  template <class Ready, class Missing>
  [[nodiscard]] Result<> wait(std::unique_lock<std::mutex>& lock, const Visit& visit,
                              const std::stop_token& stop, Ready ready, Missing missing);

  const std::uint32_t size_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<bool> joined_;
  std::optional<Rank> left_;  // the first rank that left
  std::optional<Error> broken_;
  std::map<std::uint64_t, Meeting> meetings_;
};

}  // namespace wsync::collective::nccl
