#include "trainer_side/plugin/publish_board.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"

namespace wsync::plugin {

using control::PublishState;

namespace {

std::string_view state_word(PublishState state) {
  switch (state) {
    case PublishState::kPending:
      return "pending (its weights are still being read)";
    case PublishState::kSnapshotted:
      return "snapshotted";
    case PublishState::kStaged:
      return "staged";
    case PublishState::kCommitted:
      return "committed";
    case PublishState::kSuperseded:
      return "superseded";
    case PublishState::kFailed:
      return "failed";
  }
  return "unknown";
}

// What a publish publishes, as its caller and `wsync status` name it.
std::string published_text(const control::PublishStatus& status) {
  if (!status.version.none()) return status.version.to_string();
  return status.step == 0 ? std::string("the next free step") : fmt::format("step {}", status.step);
}

}  // namespace

const std::string& PublishView::reason() const noexcept {
  return status.reason.empty() && !is_final(status.state) ? awaits : status.reason;
}

Result<std::uint64_t> PublishBoard::open(std::uint64_t step, Weights weights) {
  const std::lock_guard lock(mutex_);
  const bool can_differ = step != 0 && weights == Weights::kNew;
  for (const auto& [id, view] : publishes_)
    if (can_differ && view.status.step == step && !is_final(view.status.state))
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("step {} is being published already, and that publish has not ended; a "
                      "version never names two different byte strings: wait for it, or "
                      "publish another step",
                      step));
  const std::uint64_t id = next_++;
  publishes_[id].status.step = step;
  return id;
}

void PublishBoard::update(std::uint64_t id, const control::PublishStatus& status) {
  const std::lock_guard lock(mutex_);
  const auto found = publishes_.find(id);
  if (found == publishes_.end()) return;
  control::PublishStatus& known = found->second.status;
  if (is_final(known.state) || status.state < known.state) return;
  known = status;
  if (status.state >= PublishState::kSnapshotted && status.state <= PublishState::kCommitted &&
      !planted("snapshot_forgotten"))
    found->second.is_snapshotted = true;
  if (is_final(known.state)) ended(id);
  changed_.notify_all();
}

void PublishBoard::progress(std::uint64_t id, control::ProgressPhase phase,
                            std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = publishes_.find(id);
  if (found == publishes_.end()) return;
  found->second.phase = phase;
  found->second.done_bytes = done_bytes;
  found->second.total_bytes = total_bytes;
}

void PublishBoard::awaits(std::uint64_t id, std::string sentence) {
  const std::lock_guard lock(mutex_);
  if (const auto found = publishes_.find(id); found != publishes_.end())
    found->second.awaits = std::move(sentence);
}

void PublishBoard::fail_all(const Error& why) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, view] : publishes_) {
    if (is_final(view.status.state)) continue;
    view.status.state = PublishState::kFailed;
    view.status.code = why.code();
    view.status.reason = why.message();
    ended_.push_back(id);
  }
  changed_.notify_all();
}

void PublishBoard::ended(std::uint64_t id) {
  ended_.push_back(id);
  if (ended_.size() <= limits::kPublishesRemembered) return;
  publishes_.erase(ended_.front());
  ended_.pop_front();
}

Result<PublishView> PublishBoard::find(std::uint64_t id) const {
  const auto found = publishes_.find(id);
  if (found == publishes_.end())
    return fail(ErrorCode::kNotFound,
                id == 0 || id >= next_
                    ? fmt::format("publish {} does not exist", id)
                    : fmt::format("publish {} is no longer kept: only the last {} that ended are",
                                  id, limits::kPublishesRemembered));
  return found->second;
}

Result<PublishView> PublishBoard::look(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return find(id);
}

Result<PublishView> PublishBoard::wait(std::uint64_t id, PublishState state,
                                       std::optional<TimePoint> deadline) const {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto view = find(id);
    if (!view || view->status.state >= state || is_final(view->status.state)) return view;
    if (!deadline) {
      changed_.wait(lock);
      continue;
    }
    if (now() >= *deadline)
      return fail(
          ErrorCode::kDeadline,
          fmt::format("the publish of {} is {} at the deadline, and not {}{}{}; it goes on, "
                      "and may be awaited again",
                      published_text(view->status), state_word(view->status.state),
                      state_word(state), view->reason().empty() ? "" : ": ", view->reason()));
    changed_.wait_for(lock, *deadline - now());
  }
}

}  // namespace wsync::plugin
