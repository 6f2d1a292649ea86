// A process group that survives the loss of a rank. It forwards all calls to an inner group, which
// can be replaced by a group of the same ranks after the lost rank was restarted. Borrowed pointers
// to this group stay valid.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "shared/process_group/process_group.h"

namespace wsync::collective {

// Thread: exchange() and regroup() from one thread at a time; the others from any thread, also
// concurrently.
class RegroupableGroup final : public ProcessGroup {
 public:
  // `inner` must not be null.
  explicit RegroupableGroup(std::unique_ptr<ProcessGroup> inner);

  // Forwards all calls to `inner` from now on and leaves the former group, whose messages are lost.
  // Direct users of the former group (a heartbeat) must have ended. kInvalidInput for a null group,
  // or for another rank or number of ranks; nothing changes then.
  [[nodiscard]] Result<> regroup(std::unique_ptr<ProcessGroup> inner);

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept override { return size_; }
  [[nodiscard]] Result<> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                  TimePoint deadline) override;
  void abort(const Error& reason) override;
  [[nodiscard]] Result<> health() const override;

 private:
  // Returns a shared pointer that keeps the group alive during a call, even if it is replaced
  // meanwhile.
  [[nodiscard]] std::shared_ptr<ProcessGroup> inner() const;

  const std::uint32_t rank_;
  const std::uint32_t size_;
  mutable std::mutex mutex_;
  std::shared_ptr<ProcessGroup> inner_;  // guarded by mutex_
};

}  // namespace wsync::collective
