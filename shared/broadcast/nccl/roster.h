// Roster: what the ranks of one group share. They meet before each broadcast, so that NCCL is
// entered only when every one of them has come with the same bytes and root (NCCL hangs otherwise,
// on the GPU), and after it, so that the root is done only when all have its bytes.
//
// Broadcasts are numbered by each rank in its own order; equal numbers are one broadcast. The first
// error breaks the group for every rank. Any thread.
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
  // kInvalidInput for a rank out of range, kRefused for one that has joined.
  [[nodiscard]] Result<> join(Rank rank);
  // Takes a join() back that came to nothing.
  void forget(Rank rank);
  // Ranks that have joined.
  [[nodiscard]] std::uint32_t here() const;

  // The first error counts.
  void break_with(const Error& reason);
  // Success, what broke the group, or kPeerLost when a rank has left it.
  [[nodiscard]] Result<> health() const;
  // Breaks the group when a broadcast is under way; otherwise the others hear at their next one.
  // True when the group is whole, so that the rank can leave NCCL in good order.
  [[nodiscard]] bool leave(Rank rank);

  // One rank's share of broadcast number `sequence`.
  struct Visit {
    Rank rank{};
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    Rank root{};
    TimePoint deadline{};
  };
  // Waits for all ranks. Ranks that disagree, the deadline (kDeadline) and `stop`
  // (kCancelled: the rank's stream is being destroyed) break the group.
  [[nodiscard]] Result<> arrive(const Visit& visit, const std::stop_token& stop);
  // The rank has its bytes; waits until all have theirs. Ends as arrive().
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

  // Under the mutex.
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
  std::optional<Rank> left_;  // the first one
  std::optional<Error> broken_;
  std::map<std::uint64_t, Meeting> meetings_;
};

}  // namespace wsync::collective::nccl
