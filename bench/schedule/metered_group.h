// A process group that writes down each exchange: when, how many bytes, and what it cost the
// processor.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bench/schedule/samples.h"
#include "shared/process_group/process_group.h"

namespace wsync::bench {

// All else as the group itself. take() from the thread that calls exchange(), or when it has ended.
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

  // The exchanges since the last call.
  [[nodiscard]] std::vector<Exchange> take() { return std::exchange(exchanges_, {}); }

 private:
  std::unique_ptr<collective::ProcessGroup> group_;
  std::vector<Exchange> exchanges_;
};

}  // namespace wsync::bench
