#include "shared/process_group/emulated_link.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <utility>

#include "shared/base/format.h"

namespace wsync::collective {
namespace {

// Upper bound of a transfer time. The sum of it and now() cannot overflow.
constexpr double kLongestSeconds = 1e9;

class EmulatedLink final : public ProcessGroup {
 public:
  EmulatedLink(std::unique_ptr<ProcessGroup> group, const LinkSpeed& speed)
      : group_(std::move(group)), speed_(speed) {}

  [[nodiscard]] std::uint32_t rank() const noexcept override { return group_->rank(); }
  [[nodiscard]] std::uint32_t size() const noexcept override { return group_->size(); }
  [[nodiscard]] Result<> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                  TimePoint deadline) override {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    for (const Send& send : sends) sent += send.bytes.size();
    for (const Receive& receive : receives) received += receive.bytes.size();
    const TimePoint end = now() + time_of(std::max(sent, received));
    WSYNC_TRY(group_->exchange(sends, receives, deadline));
    if (end > deadline) {
      abort({ErrorCode::kDeadline,
             fmt::format("rank {} sends {} and receives {} on a link of {} bytes/s, which takes "
                         "longer than its deadline",
                         rank(), counted(sent, "byte"), counted(received, "byte"),
                         speed_.bytes_per_second)});
      return group_->health();
    }
    std::this_thread::sleep_for(end - now());
    return {};
  }
  void abort(const Error& reason) override { group_->abort(reason); }
  [[nodiscard]] Result<> health() const override { return group_->health(); }

 private:
  [[nodiscard]] std::chrono::nanoseconds time_of(std::uint64_t bytes) const {
    const double seconds =
        std::min(static_cast<double>(bytes) / speed_.bytes_per_second, kLongestSeconds);
    return speed_.latency + std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
  }

  std::unique_ptr<ProcessGroup> group_;
  const LinkSpeed speed_;
};

}  // namespace

Result<std::unique_ptr<ProcessGroup>> emulate_link(std::unique_ptr<ProcessGroup> group,
                                                   const LinkSpeed& speed) {
  const auto longest = std::chrono::duration<double>(kLongestSeconds);
  if (speed.latency < std::chrono::nanoseconds(0) || speed.latency > longest)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a link with a latency of {} ns, expected 0 to {} s",
                            speed.latency.count(), kLongestSeconds));
  if (!std::isfinite(speed.bytes_per_second) || speed.bytes_per_second <= 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a link of {} bytes/s, expected more than 0", speed.bytes_per_second));
  return std::unique_ptr<ProcessGroup>(std::make_unique<EmulatedLink>(std::move(group), speed));
}

}  // namespace wsync::collective
