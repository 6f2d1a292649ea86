// A process group that records each exchange: its times, its bytes, and its processor time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bench/schedule/samples.h"
#include "shared/process_group/process_group.h"

namespace wsync::bench {

// Forwards all other operations to the group. Call take() in the thread that calls exchange(), or
// after that thread has ended.
class MeteredGroup final : public collective::ProcessGroup {
 public:
  explicit MeteredGroup(std::unique_ptr<collective::ProcessGroup> group)
      : group_(std::move(group)) {}
  [[nodiscard]] std::uint32_t rank() const noexcept override { return group_->rank(); }
  [[nodiscard]] std::uint32_t size() const noexcept override { return group_->size(); }
  [[nodiscard]] Result<> exchange(std::span<const collective::Send> sends,
                                  std::span<const collective::Receive> receives,
                                  TimePoint deadline) override;
  void abort(const Error& reason) override { group_->abort(reason); }
  [[nodiscard]] Result<> health() const override { return group_->health(); }

  // Returns the exchanges since the last call.
  [[nodiscard]] std::vector<Exchange> take() { return std::exchange(exchanges_, {}); }

 private:
  std::unique_ptr<collective::ProcessGroup> group_;
  std::vector<Exchange> exchanges_;
};

}  // namespace wsync::bench
