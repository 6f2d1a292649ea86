// PublishBoard: the status of every publish of this trainer, for callers on any thread.
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

// `done_bytes` of `total_bytes` of the current phase. Both are 0 if the phase has no byte count.
struct PublishView {
  control::PublishStatus status;
  // The weights were snapshotted. It stays set if the publish fails or is superseded later.
  bool is_snapshotted = false;
  control::ProgressPhase phase = control::ProgressPhase::kSnapshot;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::string awaits;  // what its round waits for; "": not known
  // What the status says of it: its own reason, or what its round waits for.
  [[nodiscard]] const std::string& reason() const noexcept;
};

[[nodiscard]] constexpr bool is_final(control::PublishState state) noexcept {
  return state >= control::PublishState::kCommitted;
}

// How the weights of a publish compare to those of an earlier publish of the same step.
enum class Weights : std::uint8_t {
  kNew,
  kSame,  // the same bytes; used if all ranks publish a step again after a rank was lost
};

// Thread: any. Keeps the last limits::kPublishesRemembered publishes that have ended.
class PublishBoard {
 public:
  // Adds a pending publish and returns its number. Returns kInvalidInput if another publish of the
  // same step has not ended, because a report about a step must refer to one publish. Step 0 and
  // Weights::kSame are exempt from this rule.
  [[nodiscard]] Result<std::uint64_t> open(std::uint64_t step, Weights weights = Weights::kNew);
  // Sets the status. An update to an earlier state, or after a final state, is dropped.
  void update(std::uint64_t id, const control::PublishStatus& status);
  void progress(std::uint64_t id, control::ProgressPhase phase, std::uint64_t done_bytes,
                std::uint64_t total_bytes);
  void awaits(std::uint64_t id, std::string sentence);
  // Ends every publish that has not ended.
  void fail_all(const Error& why);
  // Returns kNotFound if there is no such publish, or if it is no longer kept.
  [[nodiscard]] Result<PublishView> look(std::uint64_t id) const;
  // Waits until the publish is in `state` or a later one, or has ended. Returns kDeadline if this
  // takes longer than the deadline. Without a deadline, waits until the publish ends.
  [[nodiscard]] Result<PublishView> wait(std::uint64_t id, control::PublishState state,
                                         std::optional<TimePoint> deadline) const;

 private:
  // Protected by mutex_:
  [[nodiscard]] Result<PublishView> find(std::uint64_t id) const;
  void ended(std::uint64_t id);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint64_t, PublishView> publishes_;
  std::deque<std::uint64_t> ended_;  // oldest first
  std::uint64_t next_ = 1;
};

}  // namespace wsync::plugin
