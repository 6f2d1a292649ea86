// A process group that outlives the loss of a rank: it passes everything on to an inner group,
// which can be replaced by one of the same ranks where the lost one's place is taken anew. What
// borrows it keeps its pointer.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "shared/process_group/process_group.h"

namespace wsync::collective {

// Thread: exchange() and regroup() from one at a time; the others from any thread, also meanwhile.
class RegroupableGroup final : public ProcessGroup {
 public:
  // `inner` is not null.
  explicit RegroupableGroup(std::unique_ptr<ProcessGroup> inner);

  // Passes everything on to `inner` from now on, and leaves the group before it, whose messages are
  // lost. Whatever used the former one by itself (a heartbeat) has ended. kInvalidInput for none,
  // and for another rank or another number of ranks: nothing has changed then.
  [[nodiscard]] Result<> regroup(std::unique_ptr<ProcessGroup> inner);

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept override { return size_; }
  [[nodiscard]] Result<> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                  TimePoint deadline) override;
  void abort(const Error& reason) override;
  [[nodiscard]] Result<> health() const override;

 private:
  // Keeps it alive for a call beside which it is replaced.
  [[nodiscard]] std::shared_ptr<ProcessGroup> inner() const;

  const std::uint32_t rank_;
  const std::uint32_t size_;
  mutable std::mutex mutex_;
  std::shared_ptr<ProcessGroup> inner_;  // under mutex_
};

}  // namespace wsync::collective
