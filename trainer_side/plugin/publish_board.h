// PublishBoard: how far every publish of this trainer has come, for callers on any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::plugin {

// `done_bytes` of `total_bytes` of the phase that runs; both 0 when there is nothing to count.
struct PublishView {
  control::PublishStatus status;
  control::ProgressPhase phase = control::ProgressPhase::kSnapshot;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
};

[[nodiscard]] constexpr bool is_final(control::PublishState state) noexcept {
  return state >= control::PublishState::kCommitted;
}

// What a publish of a step says of those of the same step before it.
enum class Weights : std::uint8_t {
  kNew,
  kSame,  // the very same bytes: after ranks were lost, all of them publish a step once more
};

// Thread: any. Remembers limits::kPublishesRemembered publishes that have ended.
class PublishBoard {
 public:
  // A new publish, pending; its number. kInvalidInput while one of the same step (0 aside) has not
  // ended, what is told about a step must have one meaning; unless it is the same weights once
  // more.
  [[nodiscard]] Result<std::uint64_t> open(std::uint64_t step, Weights weights = Weights::kNew);
  // Takes the status over. A publish never goes back to an earlier state, and never leaves a final
  // one: such an update is dropped.
  void update(std::uint64_t id, const control::PublishStatus& status);
  void progress(std::uint64_t id, control::ProgressPhase phase, std::uint64_t done_bytes,
                std::uint64_t total_bytes);
  // Ends every publish that has not ended.
  void fail_all(const Error& why);
  // kNotFound: there is no such publish, or it has been forgotten.
  [[nodiscard]] Result<PublishView> look(std::uint64_t id) const;
  // Waits until the publish is in `state` or a later one, or has ended. kDeadline otherwise;
  // without a deadline the publish's own end is the end of it.
  [[nodiscard]] Result<PublishView> wait(std::uint64_t id, control::PublishState state,
                                         std::optional<TimePoint> deadline) const;

 private:
  // Under mutex_:
  [[nodiscard]] Result<PublishView> find(std::uint64_t id) const;
  void ended(std::uint64_t id);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint64_t, PublishView> publishes_;
  std::deque<std::uint64_t> ended_;  // oldest first
  std::uint64_t next_ = 1;
};

}  // namespace wsync::plugin
